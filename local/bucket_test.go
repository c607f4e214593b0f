package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func TestLeaseIsSpentAndRenewedAtTheLowWaterMark(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 4000, Tokens: 4000})
	r.lease(40)
	const low = 10 // a quarter of the grant of 42
	for r.b.Pot() > low+1 {
		if _, ok, renew := r.b.Take(r.now, 1); !ok || renew {
			t.Fatalf("at %d: taken %v, renew %v", r.b.Pot(), ok, renew)
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
	r.b.Accept(r.now+ms, c.Seq, lua.Reply{Grant: c.Want, Level: 100, TTLLeft: us(time.Second)})
	r.pot(low - 2 + c.Want)
	r.balance()
}

func TestDenialKnowsCostAndAge(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 10, Tokens: 10})
	w, _, _ := r.ask(5)
	c := r.begin()
	r.now += ms
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 0, Level: 2, Retry: us(300 * ms)})
	if v := r.expect(w, local.Refused); v.Retry != 299*ms {
		t.Errorf("retry %v, want 299ms: 3 tokens at 10/s, less the ms since the call left", v.Retry)
	}
	for _, step := range []struct {
		level int64
		at    time.Duration
		cost  int64
		want  local.Outcome
	}{
		{2, 0, 5, local.Refused},
		{2, 0, 3, local.Refused},
		{2, 0, 2, local.Waiting},
		{2, 0, 1, local.Waiting}, // a cheap request is not held back by an expensive one
		{2, 99 * ms, 4, local.Refused},
		{2, 100 * ms, 3, local.Waiting},
		{2, 299 * ms, 5, local.Refused},
		{2, 300 * ms, 5, local.Waiting},
		{0, 99 * ms, 1, local.Refused},
		{0, 100 * ms, 1, local.Waiting},
		{0, 199 * ms, 2, local.Refused},
		{0, 200 * ms, 2, local.Waiting},
	} {
		r := *r
		r.b = new(local.Bucket)
		r.b.Init(r.p, "k")
		w, _, _ := r.ask(5)
		c := r.begin()
		r.b.Accept(r.now, c.Seq, lua.Reply{
			Grant: 0, Level: step.level,
			Retry: us(time.Duration(5-step.level) * 100 * ms),
		})
		<-w.C
		r.now += step.at
		if v, ok := r.b.Refuse(r.now, step.cost); ok != (step.want == local.Refused) {
			t.Errorf("level %d, %v later, cost %d: refused at once %v %+v", step.level, step.at, step.cost, ok, v)
		}
		if _, v, _ := r.ask(step.cost); v.Outcome != step.want {
			t.Errorf("level %d, %v later, cost %d: outcome %d, want %d", step.level, step.at, step.cost, v.Outcome,
				step.want)
		}
	}
}

func TestDenialIsBelievedForFiveSecondsAtMost(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 1, Tokens: 1, Per: time.Hour})
	w, _, _ := r.ask(1)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 0, Level: 0, Retry: us(time.Hour)})
	if v := r.expect(w, local.Refused); v.Retry != time.Hour {
		t.Errorf("the user is told %v, want the hour", v.Retry)
	}
	start := r.now
	for {
		_, v, _ := r.ask(1)
		if v.Outcome == local.Waiting {
			break
		}
		r.now += 10 * ms
	}
	if d := r.now - start; d < 3750*ms || d > 5*time.Second {
		t.Errorf("asked again after %v, want 3.75 s to 5 s", d)
	}
}

func TestShortGrantHoldsOff(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 200, Tokens: 1000}) // T = 50 ms
	a, _, _ := r.ask(1)
	b, _, _ := r.ask(5)
	c := r.begin()
	sent := r.now
	r.now += ms
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: 3, Level: 0, TTLLeft: us(time.Second)})
	r.expect(a, local.Admitted)
	r.expect(b, local.Refused) // a short grant fails those whom it leaves without
	if off := r.b.HoldOff(); off != sent+50*ms {
		t.Fatalf("hold-off until %v after the sending, want 50ms (U = 0.5: exactly T)", off-sent)
	}
	if _, v, _ := r.ask(3); v.Outcome != local.Refused || v.Retry != 49*ms {
		t.Fatalf("%+v during the hold-off, want refused for 49ms", v)
	}
	if _, ok, renew := r.b.Take(r.now, 2); !ok || renew {
		t.Fatalf("the pot's 2 tokens: taken %v, renew %v: prefetch obeys the hold-off too", ok, renew)
	}
	r.now = sent + 50*ms
	if _, v, e := r.ask(3); v.Outcome != local.Waiting || !e.Send {
		t.Fatalf("%+v after the hold-off, want to wait", v)
	}
}

// Any grant that is short holds off: one that leaves something in Redis for others' part too, and one that nobody
// waited for. The time is spread over half a period, so that processes refused together do not come back together.
func TestAnyShortGrantHoldsOffForAboutAPeriod(t *testing.T) {
	for _, c := range []struct {
		name    string
		renewal bool
		grant   int64
		level   int64
		uniform float64
		want    time.Duration // after the sending; 0 for no hold-off
		window  time.Duration // of a sliding window
		per     time.Duration // of the limit, if not a second
	}{
		{name: "a slow limit that has something left", grant: 3, level: 1, uniform: 0.5, per: time.Hour},
		{name: "a slow limit", grant: 3, uniform: 0.5, per: time.Hour, want: 250 * ms},
		{name: "a sliding window that has something left", grant: 3, level: 1, uniform: 0.5, window: time.Second},
		{name: "a full sliding window", grant: 3, uniform: 0.5, window: 800 * ms, want: 20 * ms},
		{name: "a full sliding window, early", grant: 3, uniform: 0, window: 800 * ms, want: 15 * ms},
		{name: "a long sliding window", grant: 3, uniform: 0.5, window: time.Hour, want: 50 * ms},
		{name: "nothing left", grant: 3, uniform: 0.5, want: 50 * ms},
		{name: "early", grant: 3, uniform: 0, want: 37500 * time.Microsecond},
		{name: "late", grant: 3, uniform: 1, want: 62500 * time.Microsecond},
		{name: "something left", grant: 3, level: 40, uniform: 0.5, want: 50 * ms},
		{name: "nothing granted, nothing left", uniform: 0.5, want: 50 * ms},
		{name: "nothing granted, something left for cheaper requests", level: 2, uniform: 0.5},
		{name: "all granted", grant: 6, uniform: 0.5},
		{name: "a renewal", renewal: true, grant: 1, level: 40, uniform: 0.5, want: 50 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, local.Policy{Cap: 200, Tokens: 1000}) // T = 50 ms
			r.p.Uniform = func() float64 { return c.uniform }
			r.p.Window = c.window
			if c.per > 0 {
				r.p.Per = c.per
			}
			if c.renewal {
				r.lease(10)
				r.now += 10 * ms
				r.b.SetDemand(1000)
				if _, ok, renew := r.b.Take(r.now, 8); !ok || !renew {
					t.Fatal("no renewal at the mark")
				}
				r.b.Renew(r.now)
			} else {
				r.ask(4)
				r.ask(2)
			}
			call := r.begin()
			sent := r.now
			r.now += ms
			if call.Want <= c.grant && c.want > 0 {
				t.Fatalf("%+v: a grant of %d is not short", call, c.grant)
			}
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: c.grant, Level: c.level, TTLLeft: us(time.Second)})
			until := sent + c.want
			if c.want == 0 {
				until = 0
			}
			if got := r.b.HoldOff(); got != until {
				t.Fatalf("hold-off until %v after the sending, want %v", got-sent, c.want)
			}
			if _, _, renew := r.b.Take(r.now, 1); renew && c.want > 0 {
				t.Error("a renewal during the hold-off")
			}
		})
	}
}

// Whoever finds a call under way waits for its answer, and one answer serves all: nobody is refused for it, and nobody
// asks on his own.
func TestRequestsWaitForTheCallUnderWay(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	first, _, _ := r.ask(1)
	second, _, _ := r.ask(1)
	call := r.begin()
	late, v, e := r.ask(1)
	if v.Outcome != local.Waiting || e.Send || e.Check != 0 {
		t.Fatalf("%+v %+v while a call is under way, want to wait for it and nothing else", v, e)
	}
	if e, _ := r.b.Accept(r.now, call.Seq, lua.Reply{Grant: 3, Level: 50, TTLLeft: us(time.Second)}); e.Send {
		t.Fatal("all are served, and another call is due")
	}
	for _, w := range []*local.Waiter{first, second, late} {
		r.expect(w, local.Admitted)
	}
}

// What is refused counts as demand, or a process that is refused most would ask for least.
func TestRefusedRequestsAreDemand(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 1000, Tokens: 1000})
	r.b.Account(r.now)
	r.ask(1)
	r.ask(1)
	call := r.begin()
	r.b.Accept(r.now, call.Seq, lua.Reply{Grant: 1, TTLLeft: us(time.Second)})
	for range 99 {
		r.now += ms
		if _, v, _ := r.ask(1); v.Outcome != local.Refused {
			t.Fatalf("%+v during the hold-off, want refused", v)
		}
	}
	r.b.Account(r.now)
	if got := r.b.Demand(); got < 250 {
		t.Errorf("%.0f/s after 0.1 s of 1000/s refused, want 1 − e^(−1/3) of it", got)
	}
}

func TestWaitersAreServedFirstComeFirst(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	r.lease(3)
	expensive, v, _ := r.ask(5)
	if v.Outcome != local.Waiting {
		t.Fatalf("%+v, want to wait: 3 held, 5 wanted", v)
	}
	if _, ok, _ := r.b.Take(r.now, 1); ok {
		t.Fatal("a cheap request overtook one that waits")
	}
	cheap, v, _ := r.ask(1)
	if v.Outcome != local.Waiting {
		t.Fatalf("%+v, want it to wait too", v)
	}
	c := r.begin()
	if c.Hold != 3 || c.Min != 2 || c.Want < 3 {
		t.Fatalf("%+v, want hold 3, min 2 (5 less what is held), want 3 at least", c)
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: c.Want, TTLLeft: us(time.Second)})
	r.expect(expensive, local.Admitted)
	r.expect(cheap, local.Admitted)
	if _, ok, _ := r.b.Take(r.now, r.b.Pot()); !ok {
		t.Fatal("the line is empty, and the hot path still closed")
	}
}

func TestLeaving(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	a, _, _ := r.ask(2)
	b, _, _ := r.ask(3)
	c := r.begin()
	if !r.b.Leave(a) || r.b.Leave(a) {
		t.Fatal("leaving works once")
	}
	r.b.Accept(r.now, c.Seq, lua.Reply{Grant: c.Want, TTLLeft: us(time.Second)})
	r.expect(b, local.Admitted)
	if r.b.Leave(b) {
		t.Fatal("left after the verdict")
	}
	r.pot(2) // of a lease: the next one takes them
	r.balance()
}

// Whatever happens to some waiters, nobody overtakes the others, neither from the pot nor by the fail mode.
func TestNobodyOvertakesWhoStillWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(r *rig, first *local.Waiter)
	}{
		{"nothing", func(*rig, *local.Waiter) {}},
		{"the first leaves", func(r *rig, first *local.Waiter) { r.b.Leave(first) }},
		{"the first leaves while a call is under way", func(r *rig, first *local.Waiter) { r.begin(); r.b.Leave(first) }},
		{"the first is served", func(r *rig, first *local.Waiter) {
			call := r.begin()
			call.Want = 60 // for the first: the second came later
			r.b.Accept(r.now, call.Seq, lua.Reply{Grant: call.Want, Level: 10, TTLLeft: us(time.Second)})
			r.expect(first, local.Admitted)
		}},
		{"a reset fails", func(r *rig, _ *local.Waiter) { r.b.Credit(local.NewWaiter(), local.Fill); r.beginWith(false) }},
		{"the call is late", func(r *rig, _ *local.Waiter) { r.b.Late(r.now, r.begin().Seq) }},
	} {
		for _, mode := range []local.FailMode{local.FailLocal, local.FailOpen, local.FailClosed} {
			r := newRig(t, local.Policy{Cap: 100, Tokens: 100, FailMode: mode})
			r.lease(30)
			first, _, _ := r.ask(60)
			second, _, _ := r.ask(90)
			c.then(r, first)
			if !r.b.Pending() || len(second.C) > 0 {
				t.Fatalf("%s, mode %d: nobody waits any more: this shows nothing", c.name, mode)
			}
			held := r.b.Pot()
			if held == 0 {
				t.Fatalf("%s, mode %d: there is nothing to take: this shows nothing", c.name, mode)
			}
			if _, ok, _ := r.b.Take(r.now, 1); ok {
				t.Errorf("%s, mode %d: a token was taken from who waits", c.name, mode)
			}
			if v := r.alone(1); v.Outcome == local.Admitted || r.b.Pot() != held {
				t.Errorf("%s, mode %d: %+v: a token was taken from who waits, alone", c.name, mode, v)
			}
		}
	}
}

// Who is refused has asked: it counts as refused, and as demand, whoever refuses it.
func TestWhatIsRefusedCounts(t *testing.T) {
	refuse := func(r *rig) { // so that the level of 2 is known
		w, _, _ := r.ask(5)
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Level: 2, Retry: us(30 * ms)})
		r.expect(w, local.Refused)
	}
	for _, c := range []struct {
		name    string
		run     func(r *rig)
		refused int64
	}{
		{"by Redis", refuse, 5},
		{"without a lock", func(r *rig) {
			refuse(r)
			if v, ok := r.b.Refuse(r.now, 7); !ok || v.Outcome != local.Refused || v.Retry <= 0 {
				r.Errorf("%+v, want to be refused", v)
			}
			r.b.CountRefused(7)
		}, 12},
		{"with the lock", func(r *rig) {
			refuse(r)
			if _, v, _ := r.ask(7); v.Outcome != local.Refused {
				r.Errorf("%+v, want to be refused", v)
			}
		}, 12},
		{"by the share", func(r *rig) {
			if v := r.b.Fallback(r.now, 40, 5); v.Outcome != local.FallbackSpent {
				r.Errorf("%+v, want to be refused by a share of 20", v)
			}
		}, 40},
	} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
		c.run(r)
		if s := r.balance(); s.Refused != c.refused {
			t.Errorf("%s: %d count as refused, want %d", c.name, s.Refused, c.refused)
		}
		if offers := r.b.Offers(r.now + 100*ms); offers != c.refused {
			t.Errorf("%s: %d count as demand, want %d", c.name, offers, c.refused)
		}
	}
}

// A denial is read without a lock: what a later reply teaches is another one. And it outlasts what says nothing about
// it.
func TestDenialNeverChanges(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	refuse := func(level int64) *local.Denial {
		w, _, _ := r.ask(50)
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Level: level, Retry: us(time.Duration(50-level) * 10 * ms)})
		r.expect(w, local.Refused)
		return r.b.Denial()
	}
	first := refuse(2)
	was := *first
	r.now += 480 * ms // 50 may be there by what was learned
	second := refuse(1)
	if *first != was || second == first {
		t.Errorf("%+v and then %+v: who read the first while the second came saw neither", was, *first)
	}
	r.b.Charge(r.now, 1) // a call that asks for nothing
	second = r.b.Denial()
	was = *second
	r.now += local.RefundDelay
	r.b.Check(r.now)
	c := r.begin()
	r.b.Accept(r.now, c.Seq, lua.Reply{Level: 2, Epoch: 1, TTLLeft: us(time.Second)})
	if c.Want != 0 || c.Debt != 1 || r.b.Denial() != second || *second != was {
		t.Errorf("%+v: the denial is %+v, was %+v", c, r.b.Denial(), was)
	}
	if _, ok := r.b.Refuse(r.now, 50); !ok {
		t.Error("what is known to be refused is asked again")
	}
}
