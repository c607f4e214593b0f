package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// insist is ask for who waits and asks again.
func (r *rig) insist(n, more int64) (*local.Waiter, local.Verdict, local.Effect) {
	w := local.NewWaiter()
	w.AskAgain, w.More = true, more
	v, e := r.b.Ask(r.now, n, r.now+20*ms, w)
	return w, v, e
}

// What a short grant learns holds others off, and not those who wait; and what comes for those who wait holds nobody
// off.
func TestHoldOffIsNotForThoseWhoWait(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 1000, Tokens: 1000})
	r.lease(10)
	for r.b.Pot() > 0 {
		r.b.Take(r.now, 1)
	}
	w, _, _ := r.ask(1)
	other, _, _ := r.ask(1)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Level: 0, TTLLeft: us(time.Second)})
	r.expect(w, local.Admitted)
	r.expect(other, local.Refused)
	if v, refused := r.b.Refuse(r.now, 1); !refused || v.Retry < 100*ms {
		t.Fatalf("%+v %v, want a hold-off", v, refused)
	}
	r.now += 2 * ms
	if v, refused := r.b.RefuseWaiter(r.now, 1); refused {
		t.Errorf("%+v: held off, and the next token came", v)
	}
	p, v, _ := r.insist(1, 5)
	if v.Outcome != local.Waiting {
		t.Fatalf("%+v", v)
	}
	holdOff := r.b.HoldOff()
	r.now += ms
	if c = r.begin(); c.Min != 1 || c.Want < 6 {
		t.Fatalf("%+v, want one at least, and those behind", c)
	}
	r.now += ms
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 2, Level: 0, TTLLeft: us(time.Second)})
	if r.expect(p, local.Admitted); !p.Short {
		t.Errorf("%+v, want to be told that the grant was short", p)
	}
	r.pot(1)
	if got := r.b.HoldOff(); got != holdOff {
		t.Errorf("the others are held off until %v, before until %v", got, holdOff)
	}
	if _, ok, renew := r.b.Take(r.now+100*ms, 1); !ok || renew {
		t.Errorf("taken %v, and a renewal is asked for: %v", ok, renew)
	}
}

// Who waits is counted when it is served.
func TestWhoWaitsIsNotCountedAsRefused(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10, NoLease: true})
	w, _, _ := r.insist(4, 0)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 0, Level: 2, Retry: us(200 * ms)})
	if v := r.expect(w, local.Refused); v.Retry != 200*ms {
		t.Errorf("%+v", v)
	}
	if _, v, _ := r.insist(4, 0); v.Outcome != local.Refused || v.Retry != 200*ms {
		t.Errorf("%+v", v)
	}
	if s := r.b.Stats(); s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	r.ask(4)
	if s := r.b.Stats(); s.Refused != 4 {
		t.Errorf("%+v", s)
	}
}

// After what came for one who waits, the next knows when its tokens can be there, to the part of a token that no reply
// tells: unless the level may have been at its burst meanwhile, or its room is taken.
func TestGrantLeavesAKnownPartOfAToken(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration // asks again after a denial that told of 1.5 tokens
		cost  int64
		level int64 // left, as the reply has it
		wait  time.Duration
		next  int64
		known bool
	}{
		{"a part is left", 200 * ms, 3, 0, 50 * ms, 1, true},
		{"others took whole tokens", 700 * ms, 3, 2, 50 * ms, 3, true},
		{"others gave some back", 200 * ms, 3, 2, 100 * ms, 3, true},
		{"it was full", 3 * time.Second, 3, 0, 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, local.Policy{Cap: 10, Tokens: 10, NoLease: true})
			w, _, _ := r.insist(3, 0)
			call := r.begin()
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: 0, Level: 1, Retry: us(150 * ms)})
			r.expect(w, local.Refused)
			r.now += c.after
			w, v, _ := r.insist(c.cost, 9) // short, so that what is left is told of
			if v.Outcome != local.Waiting {
				t.Fatalf("%+v", v)
			}
			call = r.begin()
			if !call.Direct || call.Want != c.cost+3 {
				t.Fatalf("%+v, want a direct take of it, and a quarter of the burst", call)
			}
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: c.cost, Level: c.level})
			r.expect(w, local.Admitted)
			v, refused := r.b.RefuseWaiter(r.now, c.next)
			if late := v.Retry - c.wait; refused != c.known || refused && (late < 0 || late > 2*time.Microsecond) {
				t.Errorf("refused %v, %v, want %v, %v", refused, v.Retry, c.known, c.wait)
			}
		})
	}
}

// A direct take brings more for those behind; what nobody wants goes back.
func TestDirectTakeForThoseBehind(t *testing.T) {
	for _, c := range []struct{ grant, first, second, more, back int64 }{
		{9, 2, 3, 4, 0}, {6, 2, 3, 1, 0}, {5, 2, 3, 0, 0}, {4, 2, 0, 2, 0}, {2, 2, 0, 0, 0},
	} {
		r := newRig(t, local.Policy{Cap: 16, Tokens: 10, NoLease: true})
		first, _, _ := r.insist(2, 100)
		second, _, _ := r.ask(3)
		call := r.begin()
		if !call.Direct || call.Min != 2 || call.Want != 9 {
			t.Fatalf("%+v, want a direct take of 9, 2 at least", call)
		}
		r.b.Accept(r.now, call.Seq, lua.Reply{Grant: c.grant})
		if r.expect(first, local.Admitted); first.MoreGranted != c.more {
			t.Errorf("a grant of %d: %+v, want %d more", c.grant, first, c.more)
		}
		if c.second > 0 {
			r.expect(second, local.Admitted)
		}
		if s := r.balance(); s.Held != c.back || s.Spent != c.grant-c.back {
			t.Errorf("a grant of %d: %+v, want %d to go back", c.grant, s, c.back)
		}
	}
}

// So does a take that settles too, of a sliding window that leases nothing.
func TestTakeAtOnceForThoseBehind(t *testing.T) {
	r := newRig(t, local.Policy{
		Cap: 100, Tokens: 100, Per: time.Hour, Call: lua.Call{Algorithm: lua.FixedWindow},
		NoLease: true, Unleased: true,
	})
	w, _, _ := r.ask(5)
	r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 5, Level: 95, Epoch: 1, Stamp: 7})
	r.b.Return(r.now, 3, local.FromRedis, r.b.Generation(), r.expect(w, local.Admitted).Stamp)
	w, _, _ = r.insist(2, 4)
	call := r.begin()
	if !call.Unleased || call.Refund != 3 || call.Min != 2 || call.Want != 6 {
		t.Fatalf("%+v, want to settle 3 and to take 6, 2 at least", call)
	}
	r.b.Accept(r.now, call.Seq, lua.Reply{Grant: 5, Level: 0, Epoch: 1, TTLLeft: us(time.Second)})
	if r.expect(w, local.Admitted); w.MoreGranted != 3 {
		t.Errorf("%+v, want 3 more", w)
	}
	if s := r.balance(); s.Spent != 7 || s.Held != 0 {
		t.Errorf("%+v, want all 5 to be spent, and 2 of those before", s)
	}
}

// What is known of a level that was too low rises with what this process gives back.
func TestDenialRisesWithWhatGoesBack(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	w, _, _ := r.insist(90, 0)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 0, Level: 40, Retry: us(500 * ms)})
	r.expect(w, local.Refused)
	r.b.Return(r.now, 20, local.FromRedis, r.b.Generation(), nil)
	r.now += 50 * ms
	if e := r.b.Check(r.now); !e.Send {
		t.Fatalf("%+v", e)
	}
	if c = r.begin(); c.Refund != 20 || c.Want != 0 {
		t.Fatalf("%+v, want a refund", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Level: 65, TTLLeft: us(time.Second)})
	if v, refused := r.b.RefuseWaiter(r.now, 90); !refused || v.Retry != 250*ms {
		t.Errorf("%+v %v, want to wait for 25 tokens", v, refused)
	}
}

func TestEarliest(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10, NoLease: true})
	expect := func(n int64, want time.Duration, sure bool) {
		t.Helper()
		if at, known := r.b.Earliest(r.now, n); at-r.now != want || known != sure {
			t.Errorf("%d tokens in %v, known %v; want %v, %v", n, at-r.now, known, want, sure)
		}
	}
	expect(10, 0, false) // it may be full
	expect(15, 500*ms, false)
	expect(1<<60, local.Never-r.now, false)
	w, _, _ := r.insist(5, 0)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 0, Level: 2, Retry: us(250 * ms)})
	r.expect(w, local.Refused)
	expect(2, 0, true)
	expect(5, 250*ms, true)
	expect(25, 2250*ms, true)
	r.now += 100 * ms
	expect(25, 2150*ms, true)

	r = newRig(t, local.Policy{Cap: 10, Tokens: 10, Call: lua.Call{Algorithm: lua.FixedWindow}, NoLease: true})
	expect(25, 0, false)
	w, _, _ = r.insist(5, 0)
	c = r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 0, Level: 2, Retry: us(250 * ms)})
	r.expect(w, local.Refused)
	expect(5, 250*ms, true)
	expect(25, 250*ms, true)
	expect(3, 250*ms, false) // of what is cheaper than was refused nothing is known
}
