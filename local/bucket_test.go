package local

import (
	"testing"
	"time"
)

const ms = time.Millisecond

// rig drives one bucket by hand: it is the owner and Redis at once.
type rig struct {
	*testing.T
	b   *Bucket
	p   *Policy
	now time.Duration
	seq int64
}

func newRig(t *testing.T, p Policy) *rig {
	t.Helper()
	if p.Period == 0 {
		p.Period = 250 * ms
	}
	if p.Per == 0 {
		p.Per = time.Second
	}
	p.Budget, p.Timeout = 20*ms, 50*ms
	p.Uniform = func() float64 { return 0.5 }
	r := &rig{T: t, b: new(Bucket), p: &p, now: time.Second}
	r.b.Init(r.p)
	return r
}

func (r *rig) begin() Call { r.Helper(); return r.beginWith(true) }

func (r *rig) beginWith(clock bool) Call {
	r.Helper()
	r.seq++
	c, _ := r.b.Begin(r.now, Conditions{Seq: r.seq, Clock: clock, Trip: ms, Fleet: 1})
	return c
}

// ask puts a request of n tokens to the bucket.
func (r *rig) ask(n int64) (*Waiter, Verdict, Effect) {
	w := NewWaiter()
	v, e := r.b.Ask(r.now, n, r.now+20*ms, w)
	return w, v, e
}

// lease gives the bucket a lease of n tokens for a second, by a line of two.
func (r *rig) lease(n int64) {
	r.Helper()
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(1)
	c := r.begin()
	if c.Direct || c.Want < 2 {
		r.Fatalf("two in line led to %+v, want a lease of at least 2", c)
	}
	if _, ok := r.b.Accept(r.now, c.Seq, Reply{Grant: n + 2, Level: 50, TTLLeft: time.Second}); !ok {
		r.Fatal("the reply was not accepted")
	}
	r.expect(a, Admitted)
	r.expect(b, Admitted)
}

func (r *rig) expect(w *Waiter, o Outcome) Verdict {
	r.Helper()
	select {
	case v := <-w.C:
		if v.Outcome != o {
			r.Fatalf("outcome %d, want %d", v.Outcome, o)
		}
		return v
	default:
		r.Fatalf("no verdict, want outcome %d", o)
		return Verdict{}
	}
}

func (r *rig) pot(want int64) {
	r.Helper()
	if got := r.b.pot.Load(); got != want {
		r.Fatalf("the pot holds %d, want %d", got, want)
	}
}

// balance checks the ledger's equation.
func (r *rig) balance() Stats {
	r.Helper()
	s := r.b.Stats()
	if s.Granted != s.Spent+s.Returned+s.Burnt+s.Held {
		r.Fatalf("granted %d ≠ spent %d + returned %d + burnt %d + held %d", s.Granted, s.Spent, s.Returned, s.Burnt, s.Held)
	}
	return s
}

func TestFirstTouchIsDirect(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 10})
	w, v, e := r.ask(3)
	if v.Outcome != Waiting || !e.Send {
		t.Fatalf("the first request got %+v %+v, want to wait and to be sent", v, e)
	}
	c := r.begin()
	if !c.Direct || c.Want != 3 || c.Min != 3 || c.Deadline != r.now+20*ms {
		t.Fatalf("first call %+v, want a direct take of 3 until the caller's budget ends", c)
	}
	if c.Ack+c.Hold+c.Ret+c.Refund != 0 {
		t.Fatalf("a direct take states a lease: %+v", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: 3, Level: 7})
	if v := r.expect(w, Admitted); v.Left != 7 {
		t.Errorf("left %d, want 7", v.Left)
	}
	r.pot(0)
	if s := r.balance(); s.Spent != 3 {
		t.Errorf("spent %d, want 3", s.Spent)
	}
}

func TestOnlyOneCallUnderWay(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 10})
	_, _, first := r.ask(1)
	_, _, queued := r.ask(1)
	if !first.Send || queued.Send {
		t.Fatalf("sends %v and %v, want one entry in the queue", first.Send, queued.Send)
	}
	c := r.begin()
	if _, _, e := r.ask(1); e.Send {
		t.Fatal("a request was queued while a call was under way")
	}
	if again := r.begin(); again.Seq != 0 {
		t.Fatalf("a second call began: %+v", again)
	}
	if e, _ := r.b.Accept(r.now, c.Seq, Reply{Grant: 2, TTLLeft: time.Second}); !e.Send {
		t.Fatal("one still waits in line: another call is due")
	}
}

func TestNoLeaseBeforeTheClockIsKnown(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 10})
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(2)
	c := r.beginWith(false)
	if !c.Direct || c.Want != 3 || c.Min != 1 {
		t.Fatalf("%+v, want one direct take of 3 for both", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: 3})
	r.expect(a, Admitted)
	r.expect(b, Admitted)
}

func TestNoLeasePolicyTakesDirectly(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 10, NoLease: true})
	a, _, _ := r.ask(4)
	b, _, _ := r.ask(4)
	c := r.begin()
	if !c.Direct || c.Want != 8 || c.Min != 4 {
		t.Fatalf("%+v, want a direct take of 8, 4 at least", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: 5, Level: 0})
	r.expect(a, Admitted)
	r.expect(b, Refused)
	if e := r.b.Check(r.now + refundDelay); !e.Send {
		t.Fatal("the token that nobody took is not given back")
	}
	if c = r.begin(); c.Direct || c.Refund != 1 || c.Want != 0 {
		t.Fatalf("%+v, want a refund of 1", c)
	}
}

func TestLeaseIsSpentAndRenewedAtTheLowWaterMark(t *testing.T) {
	r := newRig(t, Policy{Cap: 4000, Tokens: 4000})
	r.lease(40)
	low := r.b.low.Load()
	if low < 10 {
		t.Fatalf("low-water mark %d, want a quarter of the grant of 42", low)
	}
	r.b.leasing = true
	for r.b.pot.Load() > low+1 {
		if _, ok, renew := r.b.Take(r.now, 1); !ok || renew {
			t.Fatalf("at %d: taken %v, renew %v", r.b.pot.Load(), ok, renew)
		}
	}
	r.now += 20 * ms
	_, ok, renew := r.b.Take(r.now, 1)
	if !ok || !renew {
		t.Fatalf("at the mark: taken %v, renew %v", ok, renew)
	}
	if e := r.b.Renew(r.now); !e.Send {
		t.Fatal("the renewal was not queued")
	}
	if _, _, renew := r.b.Take(r.now, 1); renew {
		t.Fatal("a second renewal was asked for while one is queued")
	}
	c := r.begin()
	if c.Hold != low-1 || c.Min != 1 || c.Want <= low-1 || c.Ack == 0 || c.Ret != 0 {
		t.Fatalf("renewal %+v, want hold %d", c, low-1)
	}
	r.b.Take(r.now, 1) // takers go on while it is under way
	r.b.Accept(r.now+ms, c.Seq, Reply{Grant: c.Want, Level: 100, TTLLeft: time.Second})
	r.pot(low - 2 + c.Want)
	r.balance()
}

func TestDeadlineCountsFromTheSendingAndTheShorterLife(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.ask(1)
	r.ask(1)
	sent := r.now
	c := r.begin()
	r.now += 40 * ms
	r.b.Accept(r.now, c.Seq, Reply{Grant: 10, TTLLeft: 500 * ms})
	if got, want := time.Duration(r.b.deadline.Load()), sent+495*ms; got != want {
		t.Fatalf("deadline %v, want %v: 99%% of what Redis left, from the sending on", got, want)
	}
	if _, ok, _ := r.b.Take(sent+495*ms, 1); ok {
		t.Fatal("a token was taken at the deadline")
	}
	if _, ok, _ := r.b.Take(sent+495*ms-1, 1); !ok {
		t.Fatal("no token just before the deadline")
	}
}

func TestEndedLeaseIsReturnedNotRevived(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	r.now = time.Duration(r.b.deadline.Load())
	w, _, _ := r.ask(1)
	c := r.begin()
	if c.Hold != 0 || c.Ret != 10 {
		t.Fatalf("%+v, want the dead pot as ret 10, hold 0", c)
	}
	// The return is repeated until it is accepted.
	r.b.Fail(r.now, c.Seq)
	r.expect(w, Failed)
	r.now = r.b.backOff
	r.ask(1)
	c = r.begin()
	if c.Ret != 10 || c.Ack == c.Seq-1 {
		t.Fatalf("%+v, want ret 10 again, and the ack of the last accepted call", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, TTLLeft: time.Second})
	if s := r.balance(); s.Returned != 10 {
		t.Errorf("returned %d, want 10", s.Returned)
	}
}

func TestWhatEndsUnderWayIsDropped(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	end := time.Duration(r.b.deadline.Load())
	r.now = end - 5*ms
	r.b.demand.rate = 1000
	r.b.low.Store(10)
	r.b.askAt.Store(0)
	r.b.Renew(r.now)
	c := r.begin()
	if c.Hold != 10 {
		t.Fatalf("%+v, want hold 10", c)
	}
	r.now = end + ms
	r.b.Accept(r.now, c.Seq, Reply{Grant: 3, TTLLeft: time.Second})
	r.pot(3)
	if s := r.balance(); s.Burnt != 10 {
		t.Errorf("burnt %d, want 10", s.Burnt)
	}
}

func TestGivenUpCallIsIgnored(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.ask(1)
	r.ask(1)
	c := r.begin()
	r.b.Fail(r.now, c.Seq)
	if _, ok := r.b.Accept(r.now, c.Seq, Reply{Grant: 5, TTLLeft: time.Second}); ok {
		t.Fatal("the reply of a call that was given up was accepted")
	}
	r.pot(0)
	if _, v, _ := r.ask(1); v.Outcome != Failed {
		t.Fatalf("outcome %d right after a failure, want Failed without asking", v.Outcome)
	}
	r.now = r.b.backOff
	r.ask(1)
	next := r.begin()
	if next.Ack >= c.Seq {
		t.Fatalf("ack %d covers seq %d, which was never accepted", next.Ack, c.Seq)
	}
}

func TestFreshStateAcknowledgesEverythingBefore(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.seq = 41
	r.ask(1)
	r.ask(1)
	c := r.begin()
	if c.Seq != 42 || c.Ack != 41 || c.Hold != 0 {
		t.Fatalf("%+v, want ack = seq − 1 and hold 0", c)
	}
	r.b.Fail(r.now, 42)
	r.now = r.b.backOff
	r.ask(1)
	if c = r.begin(); c.Ack != 41 {
		t.Fatalf("%+v, want ack 41 still: 42 was not accepted", c)
	}
}

func TestDenialKnowsCostAndAge(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 10})
	w, _, _ := r.ask(5)
	c := r.begin()
	r.now += ms
	r.b.Accept(r.now, c.Seq, Reply{Grant: 0, Level: 2, Retry: 300 * ms})
	if v := r.expect(w, Refused); v.Retry != 299*ms {
		t.Errorf("retry %v, want 299ms: 3 tokens at 10/s, less the ms since the call left", v.Retry)
	}
	for _, step := range []struct {
		at   time.Duration
		cost int64
		want Outcome
	}{
		{0, 5, Refused}, {0, 3, Refused},
		{0, 2, Waiting}, // a cheap request is not held back by a dear one
		{99 * ms, 4, Refused},
		{100 * ms, 3, Waiting},
		{299 * ms, 5, Refused}, {300 * ms, 5, Waiting},
	} {
		r := *r
		r.b = new(Bucket)
		r.b.Init(r.p)
		w, _, _ := r.ask(5)
		c := r.begin()
		r.b.Accept(r.now, c.Seq, Reply{Grant: 0, Level: 2, Retry: 300 * ms})
		<-w.C
		r.now += step.at
		if _, v, _ := r.ask(step.cost); v.Outcome != step.want {
			t.Errorf("%v later, cost %d: outcome %d, want %d", step.at, step.cost, v.Outcome, step.want)
		}
	}
}

func TestDenialIsBelievedForFiveSecondsAtMost(t *testing.T) {
	r := newRig(t, Policy{Cap: 1, Tokens: 1, Per: time.Hour})
	w, _, _ := r.ask(1)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, Reply{Grant: 0, Level: 0, Retry: time.Hour})
	if v := r.expect(w, Refused); v.Retry != time.Hour {
		t.Errorf("the user is told %v, want the hour", v.Retry)
	}
	start := r.now
	for {
		_, v, _ := r.ask(1)
		if v.Outcome == Waiting {
			break
		}
		r.now += 10 * ms
	}
	if d := r.now - start; d < 3750*ms || d > 5*time.Second {
		t.Errorf("asked again after %v, want 3.75 s to 5 s", d)
	}
}

func TestShortGrantHoldsOff(t *testing.T) {
	r := newRig(t, Policy{Cap: 200, Tokens: 1000}) // T = 50 ms
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(5)
	c := r.begin()
	sent := r.now
	r.now += ms
	r.b.Accept(r.now, c.Seq, Reply{Grant: 3, Level: 0, TTLLeft: time.Second})
	r.expect(a, Admitted)
	r.expect(b, Refused) // a short grant fails those whom it leaves without
	if r.b.holdOff != sent+50*ms {
		t.Fatalf("hold-off until %v after the sending, want 50ms (U = 0.5: exactly T)", r.b.holdOff-sent)
	}
	if _, v, _ := r.ask(3); v.Outcome != Refused || v.Retry != 49*ms {
		t.Fatalf("%+v during the hold-off, want refused for 49ms", v)
	}
	if _, ok, renew := r.b.Take(r.now, 2); !ok || renew {
		t.Fatalf("the pot's 2 tokens: taken %v, renew %v: prefetch obeys the hold-off too", ok, renew)
	}
	r.now = sent + 50*ms
	if _, v, e := r.ask(3); v.Outcome != Waiting || !e.Send {
		t.Fatalf("%+v after the hold-off, want to wait", v)
	}
}

func TestLineIsFirstComeFirstServed(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(3)
	dear, v, _ := r.ask(5)
	if v.Outcome != Waiting {
		t.Fatalf("%+v, want to wait: 3 held, 5 wanted", v)
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("a cheap request overtook one in line")
	}
	cheap, v, _ := r.ask(1)
	if v.Outcome != Waiting {
		t.Fatalf("%+v, want to stand in line too", v)
	}
	c := r.begin()
	if c.Hold != 3 || c.Min != 2 || c.Want < 3 {
		t.Fatalf("%+v, want hold 3, min 2 (5 less what is held), want 3 at least", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: c.Want, TTLLeft: time.Second})
	r.expect(dear, Admitted)
	r.expect(cheap, Admitted)
	if r.b.inLine.Load() {
		t.Fatal("the line is empty, and the hot path still closed")
	}
}

func TestLeaving(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	a, _, _ := r.ask(2)
	b, _, _ := r.ask(3)
	c := r.begin()
	if !r.b.Leave(a) || r.b.Leave(a) {
		t.Fatal("leaving works once")
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: c.Want, TTLLeft: time.Second})
	r.expect(b, Admitted)
	if r.b.Leave(b) {
		t.Fatal("left after the verdict")
	}
	r.pot(2) // of a lease: the next one takes them
	r.balance()
}

func TestDirectGrantThatNobodyWaitsForGoesBackAndNotIntoThePot(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	w, _, _ := r.ask(4)
	c := r.begin()
	if !c.Direct || !r.b.Leave(w) {
		t.Fatalf("%+v", c)
	}
	e, _ := r.b.Accept(r.now, c.Seq, Reply{Grant: 4, Level: 96})
	r.pot(0)
	if e.Check == 0 || e.Check > r.now+50*ms {
		t.Fatalf("refund looked at in %v, want within 50ms", e.Check-r.now)
	}
	r.now = e.Check
	if e := r.b.Check(r.now); !e.Send {
		t.Fatal("the refund is not sent")
	}
	c = r.begin()
	if c.Direct || c.Refund != 4 || c.Want != 0 || c.Deadline == 0 {
		t.Fatalf("%+v, want a call with refund 4 and a deadline", c)
	}
	r.b.Fail(r.now, c.Seq)
	if s := r.balance(); s.Burnt != 4 || s.Held != 0 {
		t.Errorf("%+v, want the refund burnt: it is not sent twice", s)
	}
}

func TestLateIsMadeOnceMore(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	w, _, _ := r.ask(1)
	c := r.begin()
	if e := r.b.Late(r.now, c.Seq); !e.Send {
		t.Fatal("not made once more")
	}
	c = r.begin()
	if !c.Direct || c.Want != 1 {
		t.Fatalf("%+v, want the same again", c)
	}
	if e := r.b.Late(r.now, c.Seq); e.Send {
		t.Fatal("made a third time")
	}
	r.expect(w, Failed)
}

func TestIdleLeaseGoesBack(t *testing.T) {
	r := newRig(t, Policy{Cap: 1000, Tokens: 1000, Period: 100 * ms})
	r.lease(100)
	r.b.demand.rate = 1000 // busy until now
	r.now += 200 * ms
	r.b.Take(r.now, 1)
	e := r.b.Check(r.now) // used since the last look: that counts from now on
	if e.Send || e.Check == 0 {
		t.Fatalf("%+v, want another look", e)
	}
	r.b.demand.rate = 1000
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
	e, _ = r.b.Accept(r.now, c.Seq, Reply{TTLLeft: time.Second})
	if e.Check != 0 || e.Send {
		t.Fatalf("%+v: nothing is owed any more", e)
	}
	r.b.demand.rate = 0
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
		want Call
	}{{100, Call{Hold: 99}}, {10, Call{Ret: 99}}} {
		r := newRig(t, Policy{Cap: 1000, Tokens: 1000})
		r.lease(100)
		r.b.demand.rate = c.rate
		r.now += 740 * ms
		r.b.Take(r.now, 1)
		r.b.demand.at = r.now
		if e := r.b.Check(r.now); !e.Send {
			t.Fatalf("%v/s: %+v a quarter before the end, want a call", c.rate, e)
		}
		call := r.begin()
		if call.Want != 0 || call.Hold != c.want.Hold || call.Ret != c.want.Ret {
			t.Fatalf("%v/s: %+v, want %+v", c.rate, call, c.want)
		}
		r.b.Accept(r.now, call.Seq, Reply{TTLLeft: time.Second})
		if _, ok, _ := r.b.Take(r.now+500*ms, 1); ok != (call.Hold > 0) {
			t.Fatalf("%v/s: taken %v after what would have been the end", c.rate, ok)
		}
		r.balance()
	}
}

func TestReturnIsCalledOffWhenTheLeaseIsUsedMeanwhile(t *testing.T) {
	r := newRig(t, Policy{Cap: 1000, Tokens: 1000})
	r.lease(100)
	r.now += 600 * ms
	if e := r.b.Check(r.now); !e.Send {
		t.Fatal("idle, but not sent back")
	}
	r.b.Take(r.now, 1)
	r.seq++
	c, e := r.b.Begin(r.now, Conditions{Seq: r.seq, Clock: true, Trip: ms, Fleet: 1})
	if c.Seq != 0 || e.Check == 0 {
		t.Fatalf("%+v %+v, want no call and another look", c, e)
	}
}

func TestResetFillsByARefund(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	r.b.denial = denial{until: r.now + time.Second}
	w := NewWaiter()
	if _, e := r.b.Reset(w); !e.Send {
		t.Fatal("not sent")
	}
	c := r.begin()
	if c.Want != 0 || c.Refund != 200 || c.Hold != 10 || c.Direct {
		t.Fatalf("%+v, want want 0, refund 2C, hold 10", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Level: 90, TTLLeft: time.Second})
	r.expect(w, Admitted)
	if r.b.denial.until != 0 {
		t.Error("the denial outlived the reset")
	}
	r.pot(10)
	r.balance()
	r.b.Reset(w)
	if c = r.beginWith(false); c.Seq != 0 {
		t.Fatalf("%+v without a clock", c)
	}
	r.expect(w, Failed)
}

func TestRetireReturnsAndCloses(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	if e := r.b.Retire(r.now); !e.Done || !r.b.Close(r.now) {
		t.Fatalf("%+v: a bucket that owes nothing closes at once", e)
	}
	if _, v, _ := r.ask(1); v.Outcome != Gone {
		t.Fatalf("outcome %d of a closed bucket, want Gone", v.Outcome)
	}

	r = newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	if e := r.b.Retire(r.now); !e.Send || r.b.Close(r.now) {
		t.Fatalf("%+v: the lease is not given back first", e)
	}
	c := r.begin()
	if c.Ret != 10 || c.Hold != 0 || c.Want != 0 {
		t.Fatalf("%+v, want ret 10", c)
	}
	e, _ := r.b.Accept(r.now, c.Seq, Reply{TTLLeft: time.Second})
	if !e.Done || !r.b.Close(r.now) {
		t.Fatalf("%+v, want done", e)
	}
	r.balance()
}

func TestBurnNeverMints(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w, _, _ := r.ask(20)
	c := r.begin()
	r.b.Burn(r.now)
	r.expect(w, Failed)
	if _, ok := r.b.Accept(r.now, c.Seq, Reply{Grant: 10, TTLLeft: time.Second}); ok {
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
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w, _, _ := r.ask(20)
	c := r.begin()
	r.b.Expire(r.now)
	r.expect(w, Failed)
	if _, ok := r.b.Accept(r.now, c.Seq, Reply{Grant: 20, TTLLeft: time.Second}); ok {
		t.Fatal("a call that slept through the standstill was accepted")
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("the lease lives on")
	}
}

func TestFailureLeavesTheHeldTokensToThoseTheySuffice(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	dear, _, _ := r.ask(50)
	cheap, _, _ := r.ask(1)
	c := r.begin()
	r.b.Fail(r.now, c.Seq)
	r.expect(dear, Failed)
	r.expect(cheap, Admitted)
}

func TestLateResetDoesNotSendALiveLeaseHome(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w := NewWaiter()
	r.b.Reset(w)
	c := r.begin()
	r.b.Late(r.now, c.Seq)
	c = r.begin()
	r.b.Accept(r.now, c.Seq, Reply{Level: 90, TTLLeft: time.Second})
	r.expect(w, Admitted)
	if c = r.begin(); c.Ret > 0 {
		t.Errorf("%+v: the lease of a key in use went home", c)
	}
}

func TestLatenessIsForgottenWithItsCall(t *testing.T) {
	r := newRig(t, Policy{Cap: 10, Tokens: 10})
	w, _, _ := r.ask(1)
	c := r.begin()
	r.b.Late(r.now, c.Seq)
	r.b.Leave(w)
	r.begin() // nobody wants it any more
	r.now += time.Minute
	r.ask(1)
	c = r.begin()
	if e := r.b.Late(r.now, c.Seq); !e.Send {
		t.Error("the first lateness of another call counts as its second")
	}
}
