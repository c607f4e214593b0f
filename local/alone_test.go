package local

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// beginFor is begin in a fleet.
func (r *rig) beginFor(fleet int64) Call {
	r.Helper()
	r.seq++
	c, _ := r.b.Begin(r.now, Conditions{Seq: r.seq, Clock: true, Trip: ms, Fleet: fleet})
	return c
}

// alone decides n tokens by the fail mode, in a fleet of one.
func (r *rig) alone(n int64) Verdict { return r.b.Alone(r.now, n, 1) }

// admitAlone is alone that must be admitted.
func (r *rig) admitAlone(n int64) {
	r.Helper()
	if v := r.alone(n); v.Outcome != Shared && v.Outcome != Opened {
		r.Fatalf("%+v, want to be admitted alone", v)
	}
}

// askAndBegin puts one request of one token, and returns the call that is made for it.
func (r *rig) askAndBegin() Call {
	r.Helper()
	if r.b.stake != nil {
		r.now = max(r.now, r.b.backOff)
	}
	if _, v, e := r.ask(1); v.Outcome != Waiting || !e.Send {
		r.Fatalf("%+v %+v, want to wait for a call", v, e)
	}
	return r.begin()
}

// owes checks what a call says of what was admitted alone.
func (r *rig) owes(c Call, debt, owed, seen, epoch int64) {
	r.Helper()
	if c.Direct || c.Debt != debt || c.Owed != owed || c.Seen != seen || c.Epoch != epoch {
		r.Fatalf("%+v, want debt %d, owed %d, seen %d, epoch %d", c, debt, owed, seen, epoch)
	}
}

func TestAloneBeginsWithWhatIsLeftOfTheShare(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(1)
	c := r.beginFor(4) // a share of 25, 25 per second
	r.b.Accept(r.now, c.Seq, Reply{Grant: 12, TTLLeft: time.Second})
	r.expect(a, Admitted)
	r.expect(b, Admitted)
	for range 7 {
		r.b.Take(r.now, 1)
	}
	counts := map[Outcome]int{}
	var v Verdict
	for range 30 {
		v = r.b.Alone(r.now, 1, 4)
		counts[v.Outcome]++
	}
	// Twelve of the 25 came from Redis, three of them only now: the lease goes first.
	if counts[Admitted] != 3 || counts[Shared] != 13 || counts[ShareSpent] != 14 {
		t.Fatalf("%v, want 3 of the lease, 13 of the share and 14 refused", counts)
	}
	if v.Retry != 40*ms {
		t.Errorf("retry %v, want 40ms: a token at 25/s", v.Retry)
	}
	if v := r.b.Alone(r.now, 26, 4); v.Outcome != ShareSpent || v.Retry != never {
		t.Errorf("%+v for more than the share's burst, want never", v)
	}
	r.now += 40 * ms
	if v := r.b.Alone(r.now, 1, 4); v.Outcome != Shared {
		t.Errorf("%+v when the token is there", v)
	}
	if s := r.balance(); s.Shared != 14 || s.Spent != 12 {
		t.Errorf("%+v", s)
	}
}

// However often Redis goes and comes, at one instant a share is spent once.
func TestFlappingRefillsNoShare(t *testing.T) {
	r := newRig(t, Policy{Cap: 20, Tokens: 20})
	alone := 0
	for range 10 {
		for r.b.Alone(r.now, 1, 2).Outcome == Shared {
			alone++
		}
		r.b.backOff = 0
		r.ask(1)
		c := r.beginFor(2)
		r.b.Accept(r.now, c.Seq, Reply{Epoch: 1, TTLLeft: time.Second, Retry: time.Second})
		r.b.denied.Store(nil)
	}
	if alone != 10 {
		t.Errorf("%d admitted alone by a share of 10", alone)
	}
}

func TestDebtIsRepeatedUntilAcceptedAndChargedOnce(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	c := r.askAndBegin()
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 40})
	r.admitAlone(20) // and one was admitted by Redis: the share has 79

	// One request in line, and yet no direct take: only a lease's record makes a debt count once.
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
	reply := Reply{Grant: 1, Level: 10, Epoch: 7, Overflow: 55, TTLLeft: time.Second}
	if _, ok := r.b.Accept(r.now, c.Seq, reply); !ok {
		t.Fatal("not accepted")
	}
	if _, ok := r.b.Accept(r.now, c.Seq, reply); ok {
		t.Fatal("a copy was accepted")
	}
	if s := r.balance(); s.Settled != 22 || s.Shared != 25 {
		t.Fatalf("%+v, want 22 of 25 settled", s)
	}

	r.now += time.Second // the share is full again: nothing is owed in any case, the three are owed if nothing overflowed
	c = r.askAndBegin()
	r.owes(c, 3, 0, 55, 7)
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Level: 10, Epoch: 7, Overflow: 60, TTLLeft: time.Second})
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
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.admitAlone(1)
	c := r.askAndBegin()
	r.owes(c, 1, 1, 0, 0) // never read: the script takes the bucket for another
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 40, TTLLeft: time.Second})
	r.now += 3 * time.Second
	r.ask(1)
	c = r.begin()
	r.b.Accept(r.now, c.Seq, Reply{Epoch: 0, Overflow: 99}) // a bucket that is not there: no epoch, no overflow
	r.b.denied.Store(nil)
	r.admitAlone(5)

	// Without the node's clock a request is served directly, and the debt has to wait.
	r.ask(1)
	c = r.beginWith(false)
	if !c.Direct || c.Debt != 0 || c.Seen != 40 || c.Epoch != 7 {
		t.Fatalf("%+v, want a direct take", c)
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 70})
	c = r.askAndBegin()
	r.owes(c, 5, 5, 40, 7)
	r.admitAlone(2)
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 8, Overflow: 80, TTLLeft: time.Second})
	c = r.askAndBegin()
	if c.Debt != 2 || c.Seen != 80 || c.Epoch != 8 {
		t.Fatalf("%+v, want what was admitted during the call, as of its reply", c)
	}
}

func TestFailModes(t *testing.T) {
	for _, c := range []struct {
		mode       FailMode
		n          int // of 150 requests of one token, beyond the lease of 10
		outcome    Outcome
		debt, owed int64
	}{
		// The share of 100 paid for the two of the lease's line and the ten of the lease.
		{FailLocal, 88, Shared, 88, 88},
		// The same share runs as a shadow: what it would have refused is owed only if nothing overflowed.
		{FailOpen, 150, Opened, 150, 100},
		{FailClosed, 150, Failed, 0, 0},
	} {
		r := newRig(t, Policy{Cap: 100, Tokens: 100, FailMode: c.mode})
		r.lease(10)
		counts := map[Outcome]int{}
		for range 160 {
			counts[r.alone(1).Outcome]++
		}
		if counts[Admitted] != 10 || counts[c.outcome] != c.n {
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
		mode FailMode
		end  func(r *rig) Effect // of the retired bucket's first try
	}{
		{"no answer", FailLocal, func(r *rig) Effect { return r.b.Fail(r.now, r.begin().Seq) }},
		{"the breaker is open", FailLocal, func(r *rig) Effect { return r.b.Drop(r.now) }},
		{"no answer, fail-open", FailOpen, func(r *rig) Effect { return r.b.Fail(r.now, r.begin().Seq) }},
		{"the breaker is open, fail-open", FailOpen, func(r *rig) Effect { return r.b.Drop(r.now) }},
	} {
		r := newRig(t, Policy{Cap: 100, Tokens: 100, FailMode: c.mode})
		r.admitAlone(5)
		r.admitAlone(3) // by fail-open: only counted yet
		if e := r.b.Retire(r.now); !e.Send || r.b.Close(r.now) {
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
					e, _ = r.b.Accept(r.now, call.Seq, Reply{TTLLeft: time.Second})
				}
			}
		}
		if !r.b.Close(r.now) {
			t.Errorf("%s: not closed", c.name)
		}
	}

	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.admitAlone(5)
	r.b.Retire(r.now)
	c := r.begin()
	r.owes(c, 5, 5, 0, 0)
	if e, _ := r.b.Accept(r.now, c.Seq, Reply{TTLLeft: time.Second}); !e.Done || !r.b.Close(r.now) {
		t.Errorf("%+v, want to be done", e)
	}
}

func TestGiveBackGoesIntoThePotOnlyIfNothingLeft(t *testing.T) {
	for _, c := range []struct {
		name      string
		source    Source
		meanwhile func(r *rig)
		pot       int64 // more than before
		refund    int64
		burnt     int64
	}{
		{"at once", FromLease, func(*rig) {}, 3, 0, 0},
		{"others took meanwhile", FromLease, func(r *rig) { r.b.Take(r.now, 2) }, 1, 0, 0},
		{"a direct take", FromRedis, func(*rig) {}, 0, 3, 0},
		{"a renewal left", FromLease, func(r *rig) { r.ask(20); r.begin() }, 0, 3, 0},
		{"a renewal left and failed", FromLease, func(r *rig) { r.ask(20); r.b.Fail(r.now, r.begin().Seq) }, 0, 3, 0},
		{"the lease went home", FromLease, func(r *rig) {
			r.b.usedAt, r.b.usedSpent = r.now, r.b.spent()
			r.now += 600 * ms
			r.b.Check(r.now)
			r.begin()
		}, -7, 3, 0},
		{"the lease is over", FromLease, func(r *rig) { r.now = time.Duration(r.b.deadline.Load()) }, 0, 3, 0},
		{"the lease was given up", FromLease, func(r *rig) { r.b.Expire(r.now) }, -7, 0, 10},
		{"its lease id was given up", FromRedis, func(r *rig) { r.b.Expire(r.now) }, -7, 0, 10},
		{"burnt under way", FromLease, func(r *rig) {
			r.now += 100 * ms
			r.ask(20)
			call := r.begin()
			r.now = time.Duration(r.b.deadline.Load())
			r.b.Accept(r.now, call.Seq, Reply{Grant: 20, TTLLeft: 2 * time.Second}) // and all 20 went to the line
		}, -7, 3, 7},
		{"burnt after it was taken under way", FromLease, nil, -7, 3, 7},
		{"evicted and gone", FromLease, func(r *rig) { r.b.Burn(r.now) }, -7, 0, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, Policy{Cap: 1000, Tokens: 1000})
			r.lease(10)
			var call Call
			if c.meanwhile == nil { // the call leaves, they are taken, the lease ends, and the reply brings another
				r.now += 100 * ms
				r.b.demand.rate = 1000
				r.b.Probe()
				call = r.begin()
			}
			gen := r.b.Generation()
			if _, ok, _ := r.b.Take(r.now, 3); !ok {
				t.Fatal("nothing to take")
			}
			if c.meanwhile != nil {
				c.meanwhile(r)
			} else {
				r.now = time.Duration(r.b.deadline.Load())
				r.b.Accept(r.now, call.Seq, Reply{Grant: call.Want, TTLLeft: 2 * time.Second})
				r.b.Take(r.now, call.Want)
			}
			e := r.b.GiveBack(r.now, 3, c.source, gen)
			r.pot(7 + c.pot)
			if r.b.ledger.refund != c.refund || r.b.ledger.burnt != c.burnt {
				t.Errorf("refund %d, burnt %d, want %d and %d", r.b.ledger.refund, r.b.ledger.burnt, c.refund, c.burnt)
			}
			r.balance()
			if c.refund == 0 || r.b.calling() || r.b.backOff > r.now { // then another event sends it
				return
			}
			if e.Check == 0 || e.Check > r.now+refundDelay {
				t.Fatalf("%+v, want to be looked at within %v", e, refundDelay)
			}
			r.now = e.Check
			if e = r.b.Check(r.now); !e.Send {
				t.Fatalf("%+v, want to be sent", e)
			}
			if call := r.begin(); call.Direct || call.Refund != 3 || call.Want != 0 {
				t.Fatalf("%+v, want a refund of 3", call)
			}
		})
	}
}

// What a taker took of a lease that the call under way already reported as held, it may put back: the record covers it.
func TestGiveBackOfWhatWasTakenAfterTheCallLeft(t *testing.T) {
	r := newRig(t, Policy{Cap: 1000, Tokens: 1000})
	r.lease(10)
	w, _, _ := r.ask(20)
	call := r.begin()
	r.b.Leave(w)
	gen := r.b.Generation()
	r.b.Take(r.now, 3)
	r.b.GiveBack(r.now, 3, FromLease, gen)
	r.pot(call.Hold)
}

func TestGiveBackOfTheShareLowersTheDebt(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.admitAlone(10)
	r.admitAlone(5)
	if e := r.b.GiveBack(r.now, 10, FromShare, 0); e != (Effect{}) {
		t.Errorf("%+v, want nothing to be done", e)
	}
	c := r.askAndBegin()
	r.owes(c, 5, 5, 0, 0)
	if v := r.alone(86); v.Outcome != ShareSpent { // what was given back is not admitted again: 85 are left
		t.Errorf("%+v", v)
	}
	r.balance()
}

// A debt that is on its way to Redis is charged there: what is given back of it meanwhile is lost. Once it was taken off
// the debt, and the debt became negative: Redis refused every call for the key.
func TestGiveBackOfTheShareWhileItsDebtIsUnderWay(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	r.admitAlone(10)
	c := r.askAndBegin()
	r.owes(c, 10, 10, 0, 0)
	r.admitAlone(4)
	r.b.Owe(r.now, 1)
	r.b.GiveBack(r.now, 10, FromShare, 0)
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 1, TTLLeft: time.Second})
	c = r.askAndBegin()
	if c.Debt != 1 || c.Owed != 1 {
		t.Fatalf("%+v, want a debt of 1: the four were given back", c)
	}
	// The call fails, so that nothing was charged: then the debt stands.
	r = newRig(t, Policy{Cap: 100, Tokens: 100})
	r.admitAlone(10)
	c = r.askAndBegin()
	r.b.GiveBack(r.now, 10, FromShare, 0)
	r.b.Fail(r.now, c.Seq)
	if c = r.askAndBegin(); c.Debt != 10 {
		t.Fatalf("%+v, want a debt of 10", c)
	}
}

func TestOweIsChargedWhateverWasThrownAway(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	c := r.askAndBegin()
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 40})
	e, _ := r.b.Owe(r.now, 30)
	if e.Check == 0 || e.Check > r.now+refundDelay {
		t.Fatalf("%+v, want to be looked at within %v", e, refundDelay)
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
	r.b.Owe(r.now, 2)
	r.admitAlone(4)
	r.now += 10 * time.Second // the share is full again: of the debt, only what is owed in any case remains so
	c = r.begin()
	r.owes(c, 36, 32, 40, 7)
	r.b.GiveBack(r.now, 10, FromShare, 0) // under way: none of it
	r.b.Accept(r.now, c.Seq, Reply{Epoch: 7, TTLLeft: time.Second})
	if c = r.begin(); c.Seq != 0 {
		t.Fatalf("%+v: it was charged twice", c)
	}
	r.b.Owe(r.now, 1000)
	r.now += refundDelay
	r.b.Check(r.now)
	c = r.begin()
	r.owes(c, 100, 100, 0, 7) // one burst at most
	r.balance()
	r.b.Burn(r.now)
	if _, ok := r.b.Owe(r.now, 1); ok {
		t.Error("a closed bucket charged something")
	}
}

// Whatever the sequence of steps, alone or not, given back or owed: the books balance, no debt is negative or lost, and
// owed is what b owes, what fail-open has only counted yet included.
func owed(b *Bucket) debt {
	if b.stake == nil {
		return debt{}
	}
	return debt{b.owing(), b.debt.sure}
}

// the pot never holds more than what Redis was told.
func TestAloneKeepsItsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			Cap: rapid.Int64Range(1, 200).Draw(t, "cap"), Tokens: rapid.Int64Range(1, 1000).Draw(t, "tokens"),
			Per: time.Second, Period: 250 * ms, Budget: 20 * ms, Timeout: 50 * ms,
			NoLease:  rapid.IntRange(0, 3).Draw(t, "no lease") == 3,
			FailMode: FailMode(rapid.IntRange(0, 2).Draw(t, "fail mode")),
			Uniform:  func() float64 { return 0.5 },
		}
		b := new(Bucket)
		b.Init(&p, "k")
		type taken struct {
			n      int64
			source Source
			gen    int64
		}
		var (
			now, seq = time.Duration(0), int64(0)
			call     Call
			line     []*Waiter
			waiting  = map[*Waiter]taken{}
			held     []taken // reservations
			admitted int64   // by Redis, less what was given back
			alone    int64
			settled  int64
			cover    int64 // what a record of Redis covers
		)
		n := func() int64 { return rapid.Int64Range(1, min(p.Cap, 10)).Draw(t, "n") }
		collect := func() {
			for i := 0; i < len(line); {
				select {
				case v := <-line[i].C:
					if v.Outcome == Admitted {
						admitted += waiting[line[i]].n
						held = append(held, waiting[line[i]])
					}
					line = append(line[:i], line[i+1:]...)
				default:
					i++
				}
			}
		}
		steps := []string{
			"take", "take", "take", "ask", "ask", "ask", "alone", "alone", "give back", "give back", "give back", "owe",
			"begin", "begin", "begin", "accept", "accept", "accept", "fail", "late", "drop", "check", "probe", "leave", "expire",
			"retire", "revive",
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now += time.Duration(rapid.SampledFrom([]int{0, 0, 1, 5, 30, 300, 3000}).Draw(t, "ms")) * ms
			before := owed(b)
			switch rapid.SampledFrom(steps).Draw(t, "step") {
			case "take":
				x := taken{n(), FromLease, b.Generation()}
				if _, ok, renew := b.Take(now, x.n); ok {
					admitted += x.n
					held = append(held, x)
					if renew {
						b.Renew(now)
					}
				}
			case "ask":
				w, x := NewWaiter(), taken{n(), FromLease, b.Generation()}
				switch v, _ := b.Ask(now, x.n, now+20*ms, w); v.Outcome {
				case Admitted:
					admitted += x.n
					held = append(held, x)
				case Waiting:
					x.source = FromRedis
					waiting[w] = x
					line = append(line, w)
				}
			case "alone":
				x := taken{n(), FromShare, b.Generation()}
				switch v := b.Alone(now, x.n, rapid.Int64Range(1, 5).Draw(t, "fleet")); v.Outcome {
				case Admitted:
					x.source = FromRedis
					admitted += x.n
					held = append(held, x)
				case Shared, Opened:
					alone += x.n
					held = append(held, x)
				}
			case "give back":
				if len(held) == 0 {
					break
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				x := held[i]
				held = append(held[:i], held[i+1:]...)
				b.GiveBack(now, x.n, x.source, x.gen)
				if x.source != FromShare {
					admitted -= x.n
				} else if less := before.admitted - owed(b).admitted; less < 0 || less > x.n {
					t.Fatalf("%d given back, the debt fell by %d", x.n, less)
				} else {
					alone -= less
				}
			case "owe":
				x := rapid.Int64Range(1, 2*p.Cap).Draw(t, "owe")
				b.Owe(now, x)
				alone += min(x, p.Cap)
			case "begin":
				if call.Seq != 0 {
					break
				}
				seq++
				if rapid.Bool().Draw(t, "busy") {
					b.demand.rate = 1000 // so that it leases more than what is in line
				}
				call, _ = b.Begin(now, Conditions{Seq: seq, Clock: rapid.Bool().Draw(t, "clock"), Trip: ms, Fleet: 3})
				switch {
				case call.Seq == 0:
				case call.Direct:
					if call.Ack+call.Hold+call.Ret+call.Refund+call.Debt+call.Owed > 0 {
						t.Fatalf("a direct take states a lease: %+v", call)
					}
				default:
					cover = call.Hold
					if call.Debt != owed(b).admitted || call.Owed < owed(b).sure || call.Owed > call.Debt {
						t.Fatalf("%+v with a debt of %+v", call, owed(b))
					}
				}
				if call.Ret > 0 && call.Hold > 0 || call.Min > call.Want || call.Refund < 0 {
					t.Fatalf("%+v", call)
				}
			case "accept":
				if call.Seq == 0 {
					break
				}
				grant := rapid.Int64Range(0, call.Want).Draw(t, "grant")
				if grant < call.Min {
					grant = 0
				}
				r := Reply{Grant: grant, Level: rapid.Int64Range(-p.Cap, p.Cap).Draw(t, "level"), Retry: 100 * ms,
					TTLLeft: call.TTL, Epoch: 1}
				if _, ok := b.Accept(now, call.Seq, r); ok {
					settled += call.Debt
					if !call.Direct {
						cover += grant
					}
				}
				b.Accept(now, call.Seq, r) // a copy changes nothing
				call = Call{}
			case "fail":
				b.Fail(now, call.Seq)
				call = Call{}
			case "late":
				b.Late(now, call.Seq)
				call = Call{}
			case "drop":
				b.Drop(now)
			case "check":
				b.Check(now)
			case "probe":
				b.Probe()
			case "leave":
				if len(line) > 0 && b.Leave(line[0]) {
					line = line[1:]
				}
			case "expire":
				b.Expire(now)
				call = Call{}
			case "retire":
				b.Retire(now)
			case "revive":
				b.Revive()
			}
			collect()
			if b.retired && owed(b) == (debt{}) { // forgiven
				alone = settled
			}
			s := b.Stats()
			if s.Granted != s.Spent+s.Returned+s.Burnt+s.Held || s.Held < 0 || s.Burnt < 0 || s.Returned < 0 {
				t.Fatalf("books: %+v", s)
			}
			if s.Spent != admitted {
				t.Fatalf("spent %d by the books, %d admitted and not given back", s.Spent, admitted)
			}
			if d := owed(b); d.admitted < 0 || d.sure < 0 || d.sure > d.admitted || d.admitted != alone-settled || s.Settled != settled {
				t.Fatalf("debt %+v, want %d − %d", d, alone, settled)
			}
			if pot := b.live(now); pot < 0 || pot > cover {
				t.Fatalf("pot %d, and Redis knows of %d", pot, cover)
			}
		}
	})
}

// For a millisecond fail-open only counts, without a lock. All of that becomes debt, once, whatever comes first: the next
// request, the reply to a call, its own cancelation, the clock's standing still, or the end of the bucket.
func TestWhatFailOpenOnlyCountsIsOwedOnce(t *testing.T) {
	open := func(t *testing.T) *rig {
		r := newRig(t, Policy{Cap: 100, Tokens: 100, FailMode: FailOpen})
		c := r.askAndBegin()
		r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 40})
		r.admitAlone(4)
		before := r.b.ledger.booked
		r.admitAlone(6)
		if r.b.ledger.booked != before {
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
		{"a part is given back", func(r *rig) { r.b.GiveBack(r.now, 6, FromShare, 0) }, 4, 4},
		{"all is given back", func(r *rig) { r.b.GiveBack(r.now, 10, FromShare, 0) }, 0, 0},
		{"a request that turns out dearer", func(r *rig) { r.b.Owe(r.now, 5) }, 15, 15},
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
			if r.b.stake != nil {
				r.now = max(r.now, r.b.backOff)
			}
			r.ask(1)
			call = r.begin()
		}
		if call.Direct || call.Debt != c.debt || c.debt > 0 && (call.Seen != 40 || call.Epoch != 7) {
			if c.debt > 0 || call.Debt != 0 {
				t.Errorf("%s: %+v, want debt %d since overflow 40 of epoch 7", c.name, call, c.debt)
			}
		}
		r.b.Accept(r.now, call.Seq, Reply{Grant: call.Want, Epoch: 7, Overflow: 50, TTLLeft: time.Second})
		r.now += time.Millisecond
		r.b.account(r.now)
		if r.b.debt.admitted != 0 || r.b.owing() != 0 {
			t.Errorf("%s: %+v is owed when all was settled", c.name, r.b.debt)
		}
		if s := r.balance(); s.Settled != c.debt {
			t.Errorf("%s: %d settled, want %d", c.name, s.Settled, c.debt)
		}
	}

	// Its overflow is not read while it is owed, though nobody has booked it yet.
	r := newRig(t, Policy{Cap: 100, Tokens: 100, FailMode: FailOpen})
	r.b.needStake()
	w, _, _ := r.ask(1)
	c := r.beginWith(false)
	r.b.Leave(w)
	r.admitAlone(6) // while a direct take is under way, which cannot carry it
	if r.b.debt.admitted != 0 {
		t.Fatal("it was booked at once: this shows nothing")
	}
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 70})
	if c = r.askAndBegin(); c.Debt != 6 || c.Epoch != 0 {
		t.Errorf("%+v, want debt 6, and no overflow that was read while it was owed", c)
	}

	// A bucket that is evicted with it tells it first.
	r = open(t)
	c = r.askAndBegin()
	r.b.Accept(r.now, c.Seq, Reply{Grant: 1, Epoch: 7, Overflow: 50, TTLLeft: time.Second})
	r.now = r.b.outUntil
	r.b.account(r.now)
	r.admitAlone(2)
	if r.b.debt.admitted != 0 {
		t.Fatal("it was booked at once: this shows nothing")
	}
	if e := r.b.Retire(r.now); !e.Send || r.b.Close(r.now) {
		t.Fatalf("%+v, want the debt to be told first", e)
	}
	if c = r.begin(); c.Debt != 2 {
		t.Errorf("%+v, want debt 2", c)
	}
}

// A fleet that grows and shrinks gives nobody a share anew.
func TestFleetThatChangesFillsNoShare(t *testing.T) {
	r := newRig(t, Policy{Cap: 100, Tokens: 100})
	alone := 0
	for _, fleet := range []int64{2, 1, 4, 2, 1, 50, 1, 2} {
		for r.b.Alone(r.now, 1, fleet).Outcome == Shared {
			alone++
		}
		r.seq++
		r.b.Begin(r.now, Conditions{Seq: r.seq, Fleet: fleet + 1})
	}
	if alone != 50 {
		t.Errorf("%d admitted alone by a share of 50", alone)
	}
}
