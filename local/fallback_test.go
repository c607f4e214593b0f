package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// beginFor is begin in a fleet.
func (r *rig) beginFor(fleet int64) local.Call {
	r.Helper()
	r.seq++
	c, _ := r.b.Begin(r.now, local.Conditions{Seq: r.seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: fleet})
	return c
}

// alone decides n tokens by the fail mode, in a fleet of one.
func (r *rig) alone(n int64) local.Verdict { return r.b.Fallback(r.now, n, 1) }

// admitAlone is alone that must be admitted.
func (r *rig) admitAlone(n int64) {
	r.Helper()
	if v := r.alone(n); v.Outcome != local.Fallback && v.Outcome != local.Opened {
		r.Fatalf("%+v, want to be admitted alone", v)
	}
}

// askAndBegin puts one request of one token, and returns the call that is made for it.
func (r *rig) askAndBegin() local.Call {
	r.Helper()
	r.now = max(r.now, r.b.BackOff())
	if _, v, e := r.ask(1); v.Outcome != local.Waiting || !e.Send {
		r.Fatalf("%+v %+v, want to wait for a call", v, e)
	}
	return r.begin()
}

// owes checks what a call says of what was admitted alone.
func (r *rig) owes(c local.Call, debt, owed, seen, epoch int64) {
	r.Helper()
	if c.Direct || c.Debt != debt || c.Owed != owed || c.Seen != seen || c.Epoch != epoch {
		r.Fatalf("%+v, want debt %d, owed %d, seen %d, epoch %d", c, debt, owed, seen, epoch)
	}
}

func TestFallbackBeginsWithWhatIsLeftOfTheShare(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(1)
	c := r.beginFor(4) // a share of 25, 25 per second
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 12, TTLLeft: us(time.Second)})
	r.expect(a, local.Admitted)
	r.expect(b, local.Admitted)
	for range 7 {
		r.b.Take(r.now, 1)
	}
	counts := map[local.Outcome]int{}
	var v local.Verdict
	for range 30 {
		v = r.b.Fallback(r.now, 1, 4)
		counts[v.Outcome]++
	}
	// Twelve of the 25 came from Redis, three of them only now: the lease goes first.
	if counts[local.Admitted] != 3 || counts[local.Fallback] != 13 || counts[local.FallbackSpent] != 14 {
		t.Fatalf("%v, want 3 of the lease, 13 of the share and 14 refused", counts)
	}
	if v.Retry != 40*ms {
		t.Errorf("retry %v, want 40ms: a token at 25/s", v.Retry)
	}
	if v := r.b.Fallback(r.now, 26, 4); v.Outcome != local.FallbackSpent || v.Retry != local.Never {
		t.Errorf("%+v for more than the share's burst, want never", v)
	}
	r.now += 40 * ms
	if v := r.b.Fallback(r.now, 1, 4); v.Outcome != local.Fallback {
		t.Errorf("%+v when the token is there", v)
	}
	if s := r.balance(); s.Fallback != 14 || s.Spent != 12 {
		t.Errorf("%+v", s)
	}
}

// However often Redis goes and comes, at one instant a share is spent once.
func TestFlappingRefillsNoShare(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 20, Tokens: 20})
	alone := 0
	for range 10 {
		for r.b.Fallback(r.now, 1, 2).Outcome == local.Fallback {
			alone++
		}
		r.b.Heal()
		r.ask(1)
		c := r.beginFor(2)
		r.b.Accept(r.now, c.Seq, lua.Reply{Epoch: 1, TTLLeft: us(time.Second), Retry: us(time.Second)})
		r.b.ForgetDenial()
	}
	if alone != 10 {
		t.Errorf("%d admitted alone by a share of 10", alone)
	}
}

func TestDebtIsRepeatedUntilAcceptedAndChargedOnce(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	c := r.askAndBegin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 40})
	r.admitAlone(20) // and one was admitted by Redis: the share has 79

	// One waiter, and yet no direct take: only a lease's record makes a debt count once.
	c = r.askAndBegin()
	r.owes(c, 20, 20, 40, 7)
	r.admitAlone(2) // while the call is under way
	r.b.Fail(r.now, c.Seq)
	c = r.askAndBegin()
	r.owes(c, 22, 0, 40, 7) // 375 ms later the share is full again
	r.b.Late(r.now, c.Seq)
	c = r.begin()
	r.owes(c, 22, 0, 40, 7)
	r.admitAlone(3)
	reply := lua.Reply{Grant: 1, Level: 10, Epoch: 7, Overflow: 55, TTLLeft: us(time.Second)}
	if _, ok := r.b.Accept(r.now, c.Seq, reply); !ok {
		t.Fatal("not accepted")
	}
	if _, ok := r.b.Accept(r.now, c.Seq, reply); ok {
		t.Fatal("a copy was accepted")
	}
	if s := r.balance(); s.Settled != 22 || s.Fallback != 25 {
		t.Fatalf("%+v, want 22 of 25 settled", s)
	}

	// the share is full again: nothing is owed in any case, the three are owed if nothing overflowed
	r.now += time.Second
	c = r.askAndBegin()
	r.owes(c, 3, 0, 55, 7)
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Level: 10, Epoch: 7, Overflow: 60, TTLLeft: us(time.Second)})
	r.now += 3 * time.Second // nothing is out any more
	if c = r.askAndBegin(); !c.Direct || c.Debt+c.Owed != 0 {
		t.Fatalf("%+v, want a direct take: all is settled", c)
	}
	if s := r.balance(); s.Settled != 25 {
		t.Errorf("%+v, want 25 settled", s)
	}
}

// Read while something is owed, the overflow would hide what the bucket threw away since: that is what pays.
func TestOverflowIsReadWhenNothingIsOwed(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.admitAlone(1)
	c := r.askAndBegin()
	r.owes(c, 1, 1, 0, 0) // never read: the script takes the bucket for another
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 40, TTLLeft: us(time.Second)})
	r.now += 3 * time.Second
	r.ask(1)
	c = r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Epoch: 0, Overflow: 99}) // a bucket that is not there: no epoch, no overflow
	r.b.ForgetDenial()
	r.admitAlone(5)

	// Without the node's clock a request is served directly, and the debt has to wait.
	r.ask(1)
	c = r.beginWith(false)
	if !c.Direct || c.Debt != 0 || c.Seen != 0 || c.Epoch != 7 {
		t.Fatalf("%+v, want a direct take", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 70})
	c = r.askAndBegin()
	r.owes(c, 5, 5, 40, 7)
	r.admitAlone(2)
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 8, Overflow: 80, TTLLeft: us(time.Second)})
	c = r.askAndBegin()
	if c.Debt != 2 || c.Seen != 80 || c.Epoch != 8 {
		t.Fatalf("%+v, want what was admitted during the call, as of its reply", c)
	}
}

func TestFailModes(t *testing.T) {
	for _, c := range []struct {
		mode       local.FailMode
		n          int // of 150 requests of one token, beyond the lease of 10
		outcome    local.Outcome
		debt, owed int64
	}{
		// The share of 100 paid for the two of the lease's line and the ten of the lease.
		{local.FailLocal, 88, local.Fallback, 88, 88},
		// The same share goes below zero, as the bucket would.
		{local.FailOpen, 150, local.Opened, 150, 150},
		{local.FailClosed, 150, local.Failed, 0, 0},
	} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: c.mode})
		r.lease(10)
		counts := map[local.Outcome]int{}
		for range 160 {
			counts[r.alone(1).Outcome]++
		}
		if counts[local.Admitted] != 10 || counts[c.outcome] != c.n {
			t.Errorf("mode %d: %v, want the lease of 10 first", c.mode, counts)
		}
		call := r.askAndBegin()
		if call.Debt != c.debt || call.Owed != min(c.owed, c.debt) {
			t.Errorf("mode %d: %+v, want debt %d, owed %d", c.mode, call, c.debt, c.owed)
		}
		r.balance()
	}
}

func TestRetiredBucketTellsItsDebtOnce(t *testing.T) {
	for _, c := range []struct {
		name string
		mode local.FailMode
		end  func(r *rig) local.Effect // of the retired bucket's first try
	}{
		{"no answer", local.FailLocal, func(r *rig) local.Effect { return r.b.Fail(r.now, r.begin().Seq) }},
		{"the breaker is open", local.FailLocal, func(r *rig) local.Effect { return r.b.Drop(r.now) }},
		{"no answer, fail-open", local.FailOpen, func(r *rig) local.Effect { return r.b.Fail(r.now, r.begin().Seq) }},
		{"the breaker is open, fail-open", local.FailOpen, func(r *rig) local.Effect { return r.b.Drop(r.now) }},
	} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: c.mode})
		r.admitAlone(5)
		r.admitAlone(3) // by fail-open: only counted yet
		if e := r.b.Retire(r.now); !e.Send || r.b.Finish(r.now) {
			t.Fatalf("%s: %+v, want the debt to be told first", c.name, e)
		}
		e := c.end(r)
		for i := 0; !e.Done; i++ {
			if i == 10 {
				t.Fatalf("%s: it is kept for ever", c.name)
			}
			r.now = max(r.now, e.Check)
			if e = r.b.Check(r.now); e.Send {
				call := r.begin()
				if call.Debt > 0 {
					t.Fatalf("%s: %+v: the debt was told twice", c.name, call)
				}
				if call.Seq > 0 {
					e, _ = r.b.Accept(r.now, call.Seq, lua.Reply{TTLLeft: us(time.Second)})
				}
			}
		}
		if !r.b.Finish(r.now) {
			t.Errorf("%s: not closed", c.name)
		}
	}

	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.admitAlone(5)
	r.b.Retire(r.now)
	c := r.begin()
	r.owes(c, 5, 5, 0, 0)
	if e, _ := r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second)}); !e.Done || !r.b.Finish(r.now) {
		t.Errorf("%+v, want to be done", e)
	}
}

func TestOweIsChargedWhateverWasThrownAway(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	c := r.askAndBegin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 40})
	e, _, _, _ := r.b.Charge(r.now, 30)
	if e.Check == 0 || e.Check > r.now+local.RefundDelay {
		t.Fatalf("%+v, want to be looked at within %v", e, local.RefundDelay)
	}
	r.now = e.Check
	if e = r.b.Check(r.now); !e.Send {
		t.Fatalf("%+v, want to be sent though nobody asks", e)
	}
	c = r.begin()
	r.owes(c, 30, 30, 40, 7)
	if c.Want != 0 {
		t.Fatalf("%+v: it takes tokens for nobody", c)
	}
	r.b.Fail(r.now, c.Seq)
	r.b.Charge(r.now, 2)
	r.admitAlone(4)
	r.now += 10 * time.Second // the share is full again: of the debt, only what is owed in any case remains so
	c = r.begin()
	r.owes(c, 36, 32, 40, 7)
	r.b.Return(r.now, 10, local.FromFallback, 0, nil) // under way: none of it
	r.b.Accept(r.now, c.Seq, lua.Reply{Epoch: 7, TTLLeft: us(time.Second)})
	if c = r.begin(); c.Seq != 0 {
		t.Fatalf("%+v: it was charged twice", c)
	}
	r.b.Charge(r.now, 1000)
	r.now += local.RefundDelay
	r.b.Check(r.now)
	c = r.begin()
	r.owes(c, 200, 200, 0, 7) // a full bucket and the largest debt at most
	r.balance()
	r.b.Burn(r.now)
	if _, _, _, ok := r.b.Charge(r.now, 1); ok {
		t.Error("a closed bucket charged something")
	}
}

// For a millisecond fail-open only counts, without a lock. All of that becomes debt, once, whatever comes first: the
// next request, the reply to a call, its own cancelation, the clock's standing still, or the end of the bucket.
func TestWhatFailOpenOnlyCountsIsOwedOnce(t *testing.T) {
	open := func(t *testing.T) *rig {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: local.FailOpen})
		c := r.askAndBegin()
		r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 40})
		r.admitAlone(4)
		before := r.b.Booked()
		r.admitAlone(6)
		if r.b.Booked() != before {
			t.Fatal("it was booked at once: this shows nothing")
		}
		return r
	}
	for _, c := range []struct {
		name      string
		meanwhile func(r *rig)
		debt      int64
		owed      int64
	}{
		{"nothing", func(*rig) {}, 10, 10},
		{"more of the same", func(r *rig) { r.admitAlone(2); r.now += ms; r.admitAlone(3); r.admitAlone(1) }, 16, 16},
		{"a part is given back", func(r *rig) { r.b.Return(r.now, 6, local.FromFallback, 0, nil) }, 4, 4},
		{"all is given back", func(r *rig) { r.b.Return(r.now, 10, local.FromFallback, 0, nil) }, 0, 0},
		{"a request that turns out dearer", func(r *rig) { r.b.Charge(r.now, 5) }, 15, 15},
		{"a call fails", func(r *rig) { r.b.Fail(r.now, r.askAndBegin().Seq); r.admitAlone(1) }, 11, 11},
		{"a call is refused by the breaker", func(r *rig) { r.b.Probe(); r.b.Drop(r.now) }, 10, 10},
		{"the lease id is given up", func(r *rig) { r.b.Expire(r.now) }, 10, 10},
		{"evicted and asked for again", func(r *rig) { r.b.Retire(r.now); r.b.Revive() }, 10, 10},
		{"looked at", func(r *rig) { r.b.Check(r.now); r.b.Stats() }, 10, 10},
	} {
		r := open(t)
		c.meanwhile(r)
		call := r.begin() // of what is in the queue, if anything is
		if call.Seq == 0 {
			r.now = max(r.now, r.b.BackOff())
			r.ask(1)
			call = r.begin()
		}
		if call.Direct || call.Debt != c.debt || c.debt > 0 && (call.Seen != 40 || call.Epoch != 7) {
			if c.debt > 0 || call.Debt != 0 {
				t.Errorf("%s: %+v, want debt %d since overflow 40 of epoch 7", c.name, call, c.debt)
			}
		}
		r.b.Accept(r.now, call.Seq, lua.Reply{Grant: call.Want, Epoch: 7, Overflow: 50, TTLLeft: us(time.Second)})
		r.now += time.Millisecond
		r.b.Account(r.now)
		if owing, _ := r.b.Owing(); owing != 0 || r.b.Booked() != 0 {
			t.Errorf("%s: %d is owed when all was settled", c.name, owing)
		}
		if s := r.balance(); s.Settled != c.debt {
			t.Errorf("%s: %d settled, want %d", c.name, s.Settled, c.debt)
		}
	}

	// Its overflow is not read while it is owed, though nobody has booked it yet.
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: local.FailOpen})
	r.b.NeedLease()
	w, _, _ := r.ask(1)
	c := r.beginWith(false)
	r.b.Leave(w)
	r.admitAlone(6) // while a direct take is under way, which cannot carry it
	if r.b.Booked() != 0 {
		t.Fatal("it was booked at once: this shows nothing")
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 70})
	if c = r.askAndBegin(); c.Debt != 6 || c.Epoch != 0 {
		t.Errorf("%+v, want debt 6, and no overflow that was read while it was owed", c)
	}

	// A bucket that is evicted with it tells it first.
	r = open(t)
	c = r.askAndBegin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, Epoch: 7, Overflow: 50, TTLLeft: us(time.Second)})
	r.now += 2 * time.Second // nothing is out any more
	r.b.Account(r.now)
	r.admitAlone(2)
	if r.b.Booked() != 0 {
		t.Fatal("it was booked at once: this shows nothing")
	}
	if e := r.b.Retire(r.now); !e.Send || r.b.Finish(r.now) {
		t.Fatalf("%+v, want the debt to be told first", e)
	}
	if c = r.begin(); c.Debt != 2 {
		t.Errorf("%+v, want debt 2", c)
	}
}

// A fleet that grows and shrinks gives nobody a share anew.
func TestFleetThatChangesFillsNoShare(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	alone := 0
	for _, fleet := range []int64{2, 1, 4, 2, 1, 50, 1, 2} {
		for r.b.Fallback(r.now, 1, fleet).Outcome == local.Fallback {
			alone++
		}
		r.seq++
		r.b.Begin(r.now, local.Conditions{Seq: r.seq, Lease: "me", Fleet: fleet + 1})
	}
	if alone != 50 {
		t.Errorf("%d admitted alone by a share of 50", alone)
	}
}
