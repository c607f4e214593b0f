package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestIdleLeaseGoesBack(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 1000, Tokens: 1000, Period: 100 * ms})
	r.lease(100)
	r.b.SetDemand(1000) // busy until now
	r.now += 200 * ms
	r.b.Take(r.now, 1)
	e := r.b.Check(r.now) // used since the last look: that counts from now on
	if e.Send || e.Check == 0 {
		t.Fatalf("%+v, want another look", e)
	}
	r.b.SetDemand(1000)
	r.now = e.Check
	if e = r.b.Check(r.now); !e.Send {
		t.Fatalf("%+v after 2T without use, want the return", e)
	}
	c := r.begin()
	if c.Want != 0 || c.Hold != 0 || c.Ret != 99 {
		t.Fatalf("%+v, want ret 99", c)
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("a token on its way back was taken")
	}
	e, _ = r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second)})
	if e.Check != 0 || e.Send {
		t.Fatalf("%+v: nothing is owed any more", e)
	}
	r.b.SetDemand(0)
	r.ask(1)
	if c = r.begin(); !c.Direct {
		t.Fatalf("%+v, want a direct take: no lease is out", c)
	}
}

// A lease that is used, but too slowly to be renewed, lives on instead of ending with tokens in it; one that is far too
// large for its use goes back.
func TestSlowlyUsedLeaseDoesNotBurn(t *testing.T) {
	for _, c := range []struct {
		rate float64
		want lua.Call
	}{{100, lua.Call{Hold: 99}}, {10, lua.Call{Ret: 99}}} {
		r := newRig(t, local.Policy{Cap: 1000, Tokens: 1000})
		r.lease(100)
		r.b.SetDemand(c.rate)
		r.now += 740 * ms
		r.b.Take(r.now, 1)
		r.b.Account(r.now)
		r.b.SetDemand(c.rate)
		if e := r.b.Check(r.now); !e.Send {
			t.Fatalf("%v/s: %+v a quarter before the end, want a call", c.rate, e)
		}
		call := r.begin()
		if call.Want != 0 || call.Hold != c.want.Hold || call.Ret != c.want.Ret {
			t.Fatalf("%v/s: %+v, want %+v", c.rate, call, c.want)
		}
		r.b.Accept(r.now, call.Seq, lua.Reply{TTLLeft: us(time.Second)})
		if _, ok, _ := r.b.Take(r.now+500*ms, 1); ok != (call.Hold > 0) {
			t.Fatalf("%v/s: taken %v after what would have been the end", c.rate, ok)
		}
		r.balance()
	}
}

func TestReturnIsCalledOffWhenTheLeaseIsUsedMeanwhile(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 1000, Tokens: 1000})
	r.lease(100)
	r.now += 600 * ms
	if e := r.b.Check(r.now); !e.Send {
		t.Fatal("idle, but not sent back")
	}
	r.b.Take(r.now, 1)
	r.seq++
	c, e := r.b.Begin(r.now, local.Conditions{Seq: r.seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: 1})
	if c.Seq != 0 || e.Check == 0 {
		t.Fatalf("%+v %+v, want no call and another look", c, e)
	}
}

func TestRetireReturnsAndCloses(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	if e := r.b.Retire(r.now); !e.Done || !r.b.Finish(r.now) {
		t.Fatalf("%+v: a bucket that owes nothing closes at once", e)
	}
	if _, v, _ := r.ask(1); v.Outcome != local.Outdated {
		t.Fatalf("outcome %d of a closed bucket, want Gone", v.Outcome)
	}

	r = newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	if e := r.b.Retire(r.now); !e.Send || r.b.Finish(r.now) {
		t.Fatalf("%+v: the lease is not given back first", e)
	}
	c := r.begin()
	if c.Ret != 10 || c.Hold != 0 || c.Want != 0 {
		t.Fatalf("%+v, want ret 10", c)
	}
	e, _ := r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second)})
	if !e.Done || !r.b.Finish(r.now) {
		t.Fatalf("%+v, want done", e)
	}
	r.balance()
}

func TestBurnNeverMints(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w, _, _ := r.ask(20)
	c := r.begin()
	r.b.Burn(r.now)
	r.expect(w, local.Failed)
	if _, ok := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 10, TTLLeft: us(time.Second)}); ok {
		t.Fatal("a closed bucket accepted a grant")
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("a closed bucket was spent from")
	}
	if s := r.balance(); s.Burnt != 10 {
		t.Errorf("burnt %d, want 10", s.Burnt)
	}
}

func TestExpireEndsTheLeaseAndGivesTheCallUp(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w, _, _ := r.ask(20)
	c := r.begin()
	r.b.Expire(r.now)
	r.expect(w, local.Failed)
	if _, ok := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 20, TTLLeft: us(time.Second)}); ok {
		t.Fatal("a call that slept through the standstill was accepted")
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("the lease lives on")
	}
}

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

// What was taken directly, before there was a lease state, belongs to the old lease id too when a new one is taken.
func TestNewLeaseIDOfABucketWithoutALease(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	w, _, _ := r.ask(3)
	gen := r.b.Generation()
	r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 3, Level: 97})
	r.expect(w, local.Admitted)
	r.b.Expire(r.now)
	if e, ok := r.b.Return(r.now, 3, local.FromRedis, gen, nil); !ok || e != (local.Effect{}) {
		t.Errorf("%+v: a twin of this process gives the same tokens back", e)
	}
	if s := r.balance(); s.Burnt != 3 || s.Held != 0 {
		t.Errorf("%+v, want 3 burnt", s)
	}
}
