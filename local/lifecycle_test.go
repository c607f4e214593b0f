package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A closed bucket answers nobody, by no way: who has it in hand looks the key up again. With ways that need no lock and
// look at more than one thing, each of them has to be shut.
func TestClosedBucketAnswersNobody(t *testing.T) {
	for _, c := range []struct {
		name  string
		close func(r *rig)
	}{
		{"one that had nothing", func(*rig) {}},
		{"one that was refused", func(r *rig) {
			w, _, _ := r.ask(5)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Level: 2, Retry: us(time.Minute)})
			r.expect(w, local.Refused)
		}},
		{"one that gave its lease back", func(r *rig) {
			r.lease(10)
			r.b.Retire(r.now)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{TTLLeft: us(time.Second)})
		}},
		{"one that was burnt", func(r *rig) { r.lease(10) }},
		{"one that was burnt while somebody waits", func(r *rig) {
			r.lease(10)
			w, _, _ := r.ask(20)
			r.begin()
			r.b.Burn(r.now)
			r.expect(w, local.Failed)
		}},
		{"one that somebody gave tokens back to", func(r *rig) {
			r.b.Burn(r.now)
			r.b.Return(r.now, 1, local.FromRedis, 0, nil)
		}},
	} {
		for _, mode := range []local.FailMode{local.FailLocal, local.FailOpen, local.FailClosed} {
			r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: mode})
			c.close(r)
			if r.b.Retire(r.now); !r.b.Finish(r.now) {
				r.b.Burn(r.now)
			}
			if _, ok, renew := r.b.Take(r.now, 1); ok || renew {
				t.Errorf("%s, mode %d: Take took %v, wants a renewal %v", c.name, mode, ok, renew)
			}
			if v, ok := r.b.Refuse(r.now, 5); ok {
				t.Errorf("%s, mode %d: Refuse says %+v", c.name, mode, v)
			}
			if _, v, e := r.ask(5); v.Outcome != local.Outdated || e != (local.Effect{}) {
				t.Errorf("%s, mode %d: Ask says %+v %+v", c.name, mode, v, e)
			}
			if v := r.alone(5); v.Outcome != local.Outdated {
				t.Errorf("%s, mode %d: Alone says %+v", c.name, mode, v)
			}
			if e, _, _, ok := r.b.Charge(r.now, 5); ok || e != (local.Effect{}) {
				t.Errorf("%s, mode %d: Owe says %+v", c.name, mode, e)
			}
			if v, e := r.b.Credit(local.NewWaiter(), local.Fill); v.Outcome != local.Outdated || e != (local.Effect{}) {
				t.Errorf("%s, mode %d: Reset says %+v %+v", c.name, mode, v, e)
			}
			if e := r.b.Probe(); e != (local.Effect{}) || r.b.Renew(r.now) != e || r.b.Check(r.now) != e ||
				r.begin().Seq != 0 {
				t.Errorf("%s, mode %d: it sends", c.name, mode)
			}
			if s := r.balance(); s.Held != 0 || s.Refused+s.Opened+s.Failed+s.Fallback > 5 {
				t.Errorf("%s, mode %d: %+v", c.name, mode, s)
			}
		}
	}
}

// A dry run may wait in the queue while its bucket is closed. It asks then too: Redis knows what is left.
func TestDryRunOfAClosedBucket(t *testing.T) {
	for _, a := range []lua.Algorithm{
		lua.TokenBucket, lua.FixedWindow, lua.SlidingWindow, lua.SlidingLog,
		lua.TokenBuckets,
	} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, Call: lua.Call{
			Algorithm: a, Cap: 100, Tokens: 100,
			Period: us(time.Second),
		}})
		w, _, _ := r.ask(5)
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 5, Level: 95})
		r.expect(w, local.Admitted)
		if r.b.Retire(r.now); !r.b.Finish(r.now) {
			t.Fatalf("%v: it is not closed", a)
		}
		c, asks := r.b.DryRun(r.now, 5, local.Conditions{Seq: r.seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: 1})
		if !asks || c.Want != 5 || !c.Dry() {
			t.Errorf("%v: asks %v, %+v", a, asks, c)
		}
		if v := r.b.Foreseen(r.now, 5, c, lua.Reply{Grant: 5, Level: 95}); v.Outcome != local.Admitted {
			t.Errorf("%v: %+v", a, v)
		}
	}
}

// However a pending state ends, the bucket owes nothing after it and takers are let in. One that never ended would keep
// an evicted key for ever.
func TestPendingEndsWithTheLastWaiter(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(r *rig, w *local.Waiter, ask func())
	}{
		{"who waits leaves before the call", func(r *rig, w *local.Waiter, ask func()) { ask(); r.b.Leave(w); r.begin() }},
		{"who waits leaves during the call", func(r *rig, w *local.Waiter, ask func()) {
			ask()
			call := r.begin()
			r.b.Leave(w)
			if !r.b.Pending() {
				r.Error("the call is under way, and nothing is pending")
			}
			r.b.Fail(r.now, call.Seq)
		}},
		{"the call is answered", func(r *rig, _ *local.Waiter, ask func()) {
			ask()
			call := r.begin()
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: call.Want, Level: 1, TTLLeft: us(time.Second)})
		}},
		{"the call is refused", func(r *rig, _ *local.Waiter, ask func()) {
			ask()
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Retry: us(time.Second), TTLLeft: us(time.Second)})
		}},
		{"the call fails", func(r *rig, _ *local.Waiter, ask func()) { ask(); r.b.Fail(r.now, r.begin().Seq) }},
		{"the call is late twice", func(r *rig, _ *local.Waiter, ask func()) {
			ask()
			r.b.Late(r.now, r.begin().Seq)
			r.b.Late(r.now, r.begin().Seq)
		}},
		{"the call is late, and nobody wants it any more", func(r *rig, w *local.Waiter, ask func()) {
			ask()
			r.b.Late(r.now, r.begin().Seq)
			r.b.Leave(w)
			r.begin()
		}},
		{"the call is late, and the breaker opens", func(r *rig, _ *local.Waiter, ask func()) {
			ask()
			r.b.Late(r.now, r.begin().Seq)
			r.b.Drop(r.now)
		}},
		{"the breaker is open", func(r *rig, _ *local.Waiter, ask func()) { ask(); r.b.Drop(r.now) }},
		{"the lease id is given up", func(r *rig, _ *local.Waiter, ask func()) { ask(); r.begin(); r.b.Expire(r.now) }},
		{"a reset", func(r *rig, w *local.Waiter, _ func()) {
			r.b.Credit(w, local.Fill)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{TTLLeft: us(time.Second)})
		}},
		{"a reset without a clock", func(r *rig, w *local.Waiter, _ func()) {
			r.b.Credit(w,
				local.Fill)
			r.beginWith(false)
		}},
		{"a look", func(r *rig, _ *local.Waiter, _ func()) {
			r.b.Probe()
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Level: 1, TTLLeft: us(time.Second)})
		}},
	} {
		for _, leased := range []bool{false, true} {
			r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
			if leased {
				r.lease(10)
			}
			w := local.NewWaiter()
			c.run(r, w, func() {
				if v, _ := r.b.Ask(r.now, 20, r.now+20*ms, w); v.Outcome != local.Waiting {
					r.Fatalf("%s: %+v, want to wait", c.name, v)
				}
			})
			if r.b.Pending() {
				t.Errorf("%s, leased %v: something is still pending", c.name, leased)
			}
			if held := r.b.Pot(); held > 0 && !r.b.Holds(r.now, held) {
				t.Errorf("%s, leased %v: nobody waits, and takers are not let in", c.name, leased)
			}
			r.balance()
			e := r.b.Retire(r.now)
			for i := 0; !e.Done && i < 10; i++ {
				if r.now = max(r.now, e.Check); e.Check > 0 {
					e = r.b.Check(r.now)
				}
				if call := r.begin(); call.Seq != 0 {
					e, _ = r.b.Accept(r.now, call.Seq, lua.Reply{TTLLeft: us(time.Second)})
				}
			}
			if !e.Done || !r.b.Finish(r.now) {
				t.Errorf("%s, leased %v: it is never settled", c.name, leased)
			}
		}
	}
}

// A lease of a slow limit that nobody uses goes back three periods after its last use at the latest, whether it was
// prolonged since or not, and when it would have to be prolonged if it was not used lately.
func TestAnIdleLeaseOfASlowLimitGoesBackSoon(t *testing.T) {
	for _, use := range []time.Duration{0, 100 * ms, 249 * ms, 251 * ms, 400 * ms, 499 * ms, 501 * ms, 700 * ms} {
		r := newRig(t, local.Policy{Cap: 1200, Tokens: 1200, Per: time.Hour, Call: lua.Call{Algorithm: lua.FixedWindow}})
		r.lease(100)
		r.b.SetDemand(4000) // until a moment ago it was in use
		leased := r.now
		e := r.b.Next(r.now)
		used := leased
		for i := 0; ; i++ {
			if i == 20 || e.Check == 0 && !e.Send {
				t.Fatalf("used after %v: %v after the last use it has not gone back: %+v", use, r.now-used, e)
			}
			if e.Send {
				c := r.begin()
				if c.Ret > 0 {
					break
				}
				e, _ = r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second), Level: 800, Reset: us(time.Hour)})
				continue
			}
			if at := leased + use; used < at && at <= e.Check {
				r.now = at
				if _, ok, _ := r.b.Take(r.now, 1); !ok {
					t.Fatal("nothing to use")
				}
				used = at
			}
			r.now = e.Check
			e = r.b.Check(r.now)
		}
		if idle := r.now - used; idle > 750*ms || idle < 240*ms || use < 500*ms && r.now-leased > 750*ms {
			t.Errorf("used after %v: it went back after %v, %v after the last use", use, r.now-leased, idle)
		}
	}
}
