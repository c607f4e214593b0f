package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestFirstTouchIsDirect(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10})
	w, v, e := r.ask(3)
	if v.Outcome != local.Waiting || !e.Send {
		t.Fatalf("the first request got %+v %+v, want to wait and to be sent", v, e)
	}
	c := r.begin()
	if !c.Direct || c.Want != 3 || c.Min != 3 {
		t.Fatalf("first call %+v, want a direct take of 3", c)
	}
	if c.Ack+c.Hold+c.Ret+c.Refund != 0 {
		t.Fatalf("a direct take states a lease: %+v", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 3, Level: 7})
	if v := r.expect(w, local.Admitted); v.Left != 7 {
		t.Errorf("left %d, want 7", v.Left)
	}
	r.pot(0)
	if s := r.balance(); s.Spent != 3 {
		t.Errorf("spent %d, want 3", s.Spent)
	}
}

func TestOnlyOneCallUnderWay(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10})
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
	if e, _ := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 2, TTLLeft: us(time.Second)}); !e.Send {
		t.Fatal("one still waits: another call is due")
	}
}

func TestNoLeaseBeforeTheClockIsKnown(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10})
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(2)
	c := r.beginWith(false)
	if !c.Direct || c.Want != 3 || c.Min != 1 {
		t.Fatalf("%+v, want one direct take of 3 for both", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 3})
	r.expect(a, local.Admitted)
	r.expect(b, local.Admitted)
}

func TestNoLeasePolicyTakesDirectly(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10, NoLease: true})
	a, _, _ := r.ask(4)
	b, _, _ := r.ask(4)
	c := r.begin()
	if !c.Direct || c.Want != 8 || c.Min != 4 {
		t.Fatalf("%+v, want a direct take of 8, 4 at least", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 5, Level: 0})
	r.expect(a, local.Admitted)
	r.expect(b, local.Refused)
	if e := r.b.Check(r.now + local.RefundDelay); !e.Send {
		t.Fatal("the token that nobody took is not given back")
	}
	if c = r.begin(); c.Direct || c.Refund != 1 || c.Want != 0 {
		t.Fatalf("%+v, want a refund of 1", c)
	}
}

func TestDeadlineCountsFromTheSendingAndTheShorterLife(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.ask(1)
	r.ask(1)
	sent := r.now
	c := r.begin()
	r.now += 40 * ms
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 10, TTLLeft: us(500 * ms)})
	if got, want := r.b.Deadline(), sent+495*ms; got != want {
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
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	r.now = r.b.Deadline()
	w, _, _ := r.ask(1)
	c := r.begin()
	if c.Hold != 0 || c.Ret != 10 {
		t.Fatalf("%+v, want the dead pot as ret 10, hold 0", c)
	}
	// The return is repeated until it is accepted.
	r.b.Fail(r.now, c.Seq)
	r.expect(w, local.Failed)
	r.now = r.b.BackOff()
	r.ask(1)
	c = r.begin()
	if c.Ret != 10 || c.Ack == c.Seq-1 {
		t.Fatalf("%+v, want ret 10 again, and the ack of the last accepted call", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 1, TTLLeft: us(time.Second)})
	if s := r.balance(); s.Returned != 10 {
		t.Errorf("returned %d, want 10", s.Returned)
	}
}

func TestWhatEndsUnderWayIsDropped(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	end := r.b.Deadline()
	r.now = end - 5*ms
	r.b.SetDemand(1000)
	r.b.Probe()
	c := r.begin()
	if c.Hold != 10 {
		t.Fatalf("%+v, want hold 10", c)
	}
	r.now = end + ms
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 3, TTLLeft: us(time.Second)})
	r.pot(3)
	if s := r.balance(); s.Burnt != 10 {
		t.Errorf("burnt %d, want 10", s.Burnt)
	}
}

func TestGivenUpCallIsIgnored(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.ask(1)
	r.ask(1)
	c := r.begin()
	r.b.Fail(r.now, c.Seq)
	if _, ok := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 5, TTLLeft: us(time.Second)}); ok {
		t.Fatal("the reply of a call that was given up was accepted")
	}
	r.pot(0)
	if _, v, _ := r.ask(1); v.Outcome != local.Failed {
		t.Fatalf("outcome %d right after a failure, want Failed without asking", v.Outcome)
	}
	r.now = r.b.BackOff()
	r.ask(1)
	next := r.begin()
	if next.Ack >= c.Seq {
		t.Fatalf("ack %d covers seq %d, which was never accepted", next.Ack, c.Seq)
	}
	if _, ok := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 5, TTLLeft: us(time.Second)}); ok || !r.b.Calling() {
		t.Fatal("the reply of a call that was given up was accepted as that of the next")
	}
}

func TestFreshStateAcknowledgesEverythingBefore(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.seq = 41
	r.ask(1)
	r.ask(1)
	c := r.begin()
	if c.Seq != 42 || c.Ack != 41 || c.Hold != 0 {
		t.Fatalf("%+v, want ack = seq − 1 and hold 0", c)
	}
	r.b.Fail(r.now, 42)
	r.now = r.b.BackOff()
	r.ask(1)
	if c = r.begin(); c.Ack != 41 {
		t.Fatalf("%+v, want ack 41 still: 42 was not accepted", c)
	}
}

func TestDirectGrantThatNobodyWaitsForGoesBackAndNotIntoThePot(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	w, _, _ := r.ask(4)
	c := r.begin()
	if !c.Direct || !r.b.Leave(w) {
		t.Fatalf("%+v", c)
	}
	e, _ := r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 4, Level: 96})
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
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
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
	r.expect(w, local.Failed)
}

func TestResetFillsByARefund(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	refused, _, _ := r.ask(50)
	r.b.Accept(r.now, r.begin().Seq, lua.Reply{Level: 20, TTLLeft: us(time.Second), Retry: us(time.Second)})
	r.expect(refused, local.Refused)
	w := local.NewWaiter()
	if _, e := r.b.Credit(w, local.Fill); !e.Send {
		t.Fatal("not sent")
	}
	c := r.begin()
	if c.Want != 0 || c.Refund <= 3*lua.MostTokens || c.Hold != 10 || c.Direct {
		t.Fatalf("%+v, want want 0, a refund that fills any bucket, hold 10", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Level: 90, TTLLeft: us(time.Second)})
	r.expect(w, local.Admitted)
	if _, still := r.b.Refuse(r.now, 50); still {
		t.Error("the denial outlived the reset")
	}
	r.pot(10)
	r.balance()
	r.b.Credit(w, local.Fill)
	if c = r.beginWith(false); c.Seq != 0 {
		t.Fatalf("%+v without a clock", c)
	}
	r.expect(w, local.Failed)
}

func TestFailureLeavesTheHeldTokensToThoseTheySuffice(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	expensive, _, _ := r.ask(50)
	cheap, _, _ := r.ask(1)
	c := r.begin()
	r.b.Fail(r.now, c.Seq)
	r.expect(expensive, local.Failed)
	r.expect(cheap, local.Admitted)
}

func TestLateResetDoesNotSendALiveLeaseHome(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(10)
	w := local.NewWaiter()
	r.b.Credit(w, local.Fill)
	c := r.begin()
	r.b.Late(r.now, c.Seq)
	c = r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Level: 90, TTLLeft: us(time.Second)})
	r.expect(w, local.Admitted)
	if c = r.begin(); c.Ret > 0 {
		t.Errorf("%+v: the lease of a key in use went back", c)
	}
}

func TestLatenessIsForgottenWithItsCall(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10})
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

// Who asked for a reset gets an answer, though all others left meanwhile.
func TestResetOutlastsTheWaiters(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	w, _, _ := r.ask(1)
	reset := local.NewWaiter()
	r.b.Credit(reset, local.Fill)
	r.b.Leave(w)
	c := r.begin()
	if c.Refund <= 3*lua.MostTokens {
		t.Fatalf("%+v, want a reset", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second)})
	r.expect(reset, local.Admitted)
}

// Who connects from far away may take longer than Timeout. The first call to a node that fails is made again when the
// connection can be there, and not as late as one to a node that answered before: until then the process decides alone.
func TestFirstCallIsSoonMadeAgain(t *testing.T) {
	for _, known := range []bool{false, true} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
		for failures, want := range map[bool][]time.Duration{ // three quarters of the longest: the dice show a half
			false: {150 * ms, 150 * ms, 150 * ms}, true: {375 * ms, 750 * ms, 750 * ms},
		}[known] {
			w, _, _ := r.ask(1)
			c := r.beginWith(known)
			r.now += 50 * ms
			r.b.Fail(r.now, c.Seq)
			r.expect(w, local.Failed)
			if got := r.b.BackOff() - r.now; got != want {
				t.Errorf("clock known: %v, after %d failures: asks again after %v, want %v", known, failures+1, got,
					want)
			}
			r.now = r.b.BackOff()
		}
	}
}
