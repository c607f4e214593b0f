package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Any grant that is short holds off: one that leaves something in Redis for others' part too, and
// one that nobody waited for. The time is spread over half a period, so that processes refused
// together do not come back together.
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
				if _, ok, renew := r.b.Hot().Take(r.now, 8); !ok || !renew {
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
			if _, _, renew := r.b.Hot().Take(r.now, 1); renew && c.want > 0 {
				t.Error("a renewal during the hold-off")
			}
		})
	}
}

// Whatever happens to some waiters, nobody overtakes the others, neither from the pot nor by the
// fail mode.
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
			r.expect(first, local.Granted)
		}},
		{"a reset fails", func(r *rig, _ *local.Waiter) { r.b.Credit(local.NewWaiter(), local.Fill); r.beginWith(false) }},
		{"the call is late", func(r *rig, _ *local.Waiter) { r.b.Late(r.now, r.begin().Seq, 0) }},
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
			if _, ok, _ := r.b.Hot().Take(r.now, 1); ok {
				t.Errorf("%s, mode %d: a token was taken from who waits", c.name, mode)
			}
			if v := r.alone(1); v.Reason == local.Granted || r.b.Pot() != held {
				t.Errorf("%s, mode %d: %+v: a token was taken from who waits, alone", c.name, mode, v)
			}
		}
	}
}

// A denial is read without a lock: what a later reply teaches is another one. And it outlasts what
// says nothing about it.
func TestDenialNeverChanges(t *testing.T) {
	r := newRig(t, local.Policy{Cap: 100, Tokens: 100})
	refuse := func(level int64) *local.Denial {
		w, _, _ := r.ask(50)
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Level: level, Retry: us(time.Duration(50-level) * 10 * ms)})
		r.expect(w, local.Limited)
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
	if _, ok := r.b.Hot().Refuse(r.now, 50); !ok {
		t.Error("what is known to be refused is asked again")
	}
}
