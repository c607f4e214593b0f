package local_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

func secondsAfter(n int64) time.Duration { return time.Duration(n) * time.Second }

// A window's debt is reported as it was, with its instant, until it is accepted: what is admitted meanwhile waits for
// the next call.
func TestWindowDebtIsFrozen(t *testing.T) {
	b := new(local.Bucket)
	p := &local.Policy{
		Cap: 10, Tokens: 10, Per: 60e9, Call: lua.Call{Algorithm: lua.FixedWindow, Period: 60e6}, Period: 250e6,
		Budget: 20e6, Timeout: 50e6, Uniform: func() float64 { return 0.5 },
	}
	b.Init(p, "k")
	admit := func(at, n int64) {
		t.Helper()
		if v := b.Fallback(secondsAfter(at), n, 1); v.Outcome != local.Fallback {
			t.Fatalf("%+v", v)
		}
	}
	probe := func(at, seq int64) local.Call {
		t.Helper()
		b.Probe()
		c, _ := b.Begin(secondsAfter(at), local.Conditions{
			Seq: seq, Lease: "me", Clock: true, Server: 1e15 + at*1e6,
			Fleet: 1,
		})
		if c.Seq != seq {
			t.Fatalf("%+v", c)
		}
		return c
	}
	admit(1, 3)
	first := probe(2, 1)
	if first.Debt != 3 || first.Since != 1e15+1e6 {
		t.Errorf("%+v", first)
	}
	b.Fail(secondsAfter(3), 1)
	admit(4, 2)
	if again := probe(9, 2); again.Debt != 3 || again.Since != first.Since {
		t.Errorf("again: %+v", again)
	}
	b.Accept(secondsAfter(9), 2, lua.Reply{Epoch: 1, Stamp: 1})
	if rest := probe(11, 3); rest.Debt != 2 || rest.Since != 1e15+4e6 {
		t.Errorf("the rest: %+v", rest)
	}
}

// What was admitted in an outage is reported in pieces, each with the time of its last admission, the latest first, and
// what no window counts any more not at all. A fixed window has one piece, because it does not matter where in it that is.
func TestWindowDebtIsReportedWhereItCounts(t *testing.T) {
	for _, c := range []struct {
		algorithm lua.Algorithm
		want      [][2]int64 // tokens, and the second
	}{
		{lua.FixedWindow, [][2]int64{{75, 200}}}, // it began at 150, which is when the first of the three pieces ended
		{lua.SlidingWindow, [][2]int64{{25, 200}, {25, 175}, {25, 150}, {25, 125}}},
		{lua.SlidingLog, [][2]int64{{25, 200}, {25, 175}, {25, 150}, {25, 125}}},
	} {
		for _, mode := range []local.FailMode{local.FailLocal, local.FailOpen} {
			r := newRig(t, local.Policy{
				Cap: 1000, Tokens: 1000, Per: 100 * time.Second, FailMode: mode,
				Call: lua.Call{Algorithm: c.algorithm, Period: 100e6, Span: 1},
			})
			start := r.now
			for range 200 {
				r.now += time.Second
				r.b.Fallback(r.now, 1, 1)
			}
			r.now += 100 * ms
			r.b.Probe()
			var got [][2]int64
			for len(got) < 9 {
				r.seq++
				call, _ := r.b.Begin(r.now, local.Conditions{
					Seq: r.seq, Lease: "me", Clock: true, Server: 1e15 + (r.now - start).Microseconds(), Phase: 50e6, Fleet: 1,
				})
				if call.Debt == 0 {
					break
				}
				got = append(got, [2]int64{call.Debt, (call.Since - 1e15) / 1e6})
				if e, ok := r.b.Accept(r.now, call.Seq, lua.Reply{Epoch: 1, Stamp: 1}); !ok || !e.Send {
					break
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, algorithm %d: tokens and seconds %v, want %v", mode, c.algorithm, got, c.want)
			}
			if s := r.balance(); s.Settled != 200 || owed(r.b) != (due{}) {
				t.Errorf("%v, algorithm %d: %d settled of 200, %+v owed", mode, c.algorithm, s.Settled, owed(r.b))
			}
		}
	}
}

// Who refused last and who has the least left are two limits, each as the last reply said that knew: a refusal does not
// tell of the latter, nor an admission or a settlement of the former.
func TestWhichLimitWasTold(t *testing.T) {
	r := newRig(t, local.Policy{
		Cap: 10, Tokens: 10, Per: time.Minute, Call: lua.Call{Algorithm: lua.FixedWindow, Period: 60e6},
		NoLease: true,
	})
	check := func(when string, tight, refuser uint8, clear time.Duration) {
		t.Helper()
		if got, at := r.b.LastReport(false); got != tight || at != clear {
			t.Errorf("%s: the tightest is %d until %v, want %d until %v", when, got, at, tight, clear)
		}
		if got, _ := r.b.LastReport(true); got != refuser {
			t.Errorf("%s: %d refused, want %d", when, got, refuser)
		}
	}
	check("at first", 0, 0, 0)
	answer := func(cost int64, reply lua.Reply, o local.Outcome) {
		t.Helper()
		w, _, _ := r.ask(cost)
		r.b.Accept(r.now, r.begin().Seq, reply)
		r.expect(w, o)
	}
	answer(2, lua.Reply{Grant: 2, Level: 5, Which: 1, Epoch: 1, Stamp: 1, Reset: us(time.Minute)}, local.Admitted)
	check("admitted", 1, 0, r.now+time.Minute)
	answer(6, lua.Reply{Level: 5, Retry: us(time.Second), Which: 3, Epoch: 1, Stamp: 1, Reset: us(time.Hour)},
		local.Refused)
	check("refused", 1, 3, r.now+time.Hour)
	answer(1, lua.Reply{Grant: 1, Level: 4, Which: 2, Epoch: 1, Stamp: 1, Reset: us(time.Hour)}, local.Admitted)
	check("admitted again", 2, 3, r.now+time.Hour)
	refills := newRig(t, local.Policy{Cap: 10, Tokens: 10})
	if which, clear := refills.b.LastReport(true); which != 0 || clear != 0 {
		t.Errorf("a bucket that refills: %d, %v", which, clear)
	}
}

// What comes back is credited where it was counted and nowhere else: its call names that bucket even while it reports a
// debt.
func TestWindowRefundNamesItsBucket(t *testing.T) {
	for _, owes := range []bool{false, true} {
		r := newRig(t, local.Policy{
			Cap: 10, Tokens: 10, Per: time.Minute, Call: lua.Call{Algorithm: lua.FixedWindow, Period: 60e6},
			NoLease: true,
		})
		w, _, _ := r.ask(2)
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 2, Level: 8, Epoch: 1, Stamp: 5, Reset: us(time.Minute)})
		stamp := r.expect(w, local.Admitted).Stamp
		w, _, _ = r.ask(1)
		// it was made anew
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 1, Level: 9, Epoch: 2, Stamp: 7, Reset: us(time.Minute)})
		r.expect(w, local.Admitted)
		r.b.Return(r.now, 2, local.FromRedis, r.b.Generation(), stamp)
		if owes && r.b.Fallback(r.now, 3, 1).Outcome != local.Fallback {
			t.Fatal("not admitted alone")
		}
		r.b.Probe()
		if c := r.begin(); c.Refund != 2 || c.At != 5 || c.Epoch != 1 || c.Debt > 0 != owes {
			t.Errorf("owing %v: %+v", owes, c)
		}
	}
}

// A refund names the oldest of its stamps, whichever came first: a newer one would give back more than counts there.
// Stamps of two buckets do not go together: what was counted by one that is not there any more is given back to none.
func TestRefundNamesItsOldestStamp(t *testing.T) {
	for _, c := range []struct {
		name      string
		at, epoch [2]int64 // of two requests for 2 and 3 tokens, which come back in this order
		want      [3]int64 // refund, at, epoch
	}{
		{"older first", [2]int64{10, 20}, [2]int64{1, 1}, [3]int64{5, 10, 1}},
		{"newer first", [2]int64{20, 10}, [2]int64{1, 1}, [3]int64{5, 10, 1}},
		{"made anew meanwhile", [2]int64{10, 20}, [2]int64{1, 2}, [3]int64{2, 10, 1}},
	} {
		r := newRig(t, local.Policy{
			Cap: 10, Tokens: 10, Per: time.Minute, Call: lua.Call{Algorithm: lua.FixedWindow, Period: 60e6},
			NoLease: true,
		})
		var stamps [2]*local.Stamp
		for i, n := range []int64{2, 3} {
			w, _, _ := r.ask(n)
			r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: n, Level: 5, Which: 1, Stamp: c.at[i], Epoch: c.epoch[i]})
			stamps[i] = r.expect(w, local.Admitted).Stamp
		}
		for i, n := range []int64{2, 3} {
			r.b.Return(r.now, n, local.FromRedis, r.b.Generation(), stamps[i])
		}
		r.b.Probe()
		got := r.begin()
		if got := [3]int64{got.Refund, got.At, got.Epoch}; got != c.want {
			t.Errorf("%s: refund, stamp and epoch %d, want %d", c.name, got, c.want)
		}
		r.balance()
	}
}

// A lease that ends with its fixed window cannot be prolonged, so no call tries to; and at the edge, when the whole
// limit is there again, nothing that was learned before denies it.
func TestAtTheEdgeOfAFixedWindow(t *testing.T) {
	for _, c := range []struct {
		name    string
		window  time.Duration // of a sliding window
		left    time.Duration // of the lease
		grant   int64
		check   time.Duration // from the reply on
		holdOff time.Duration // likewise
	}{
		{name: "far from the edge", left: time.Second, grant: 100, check: 500 * ms},
		{name: "near the edge", left: 200 * ms, grant: 100, check: 500 * ms}, // when it may lie idle
		{name: "a sliding window's replay", window: time.Minute, left: 200 * ms, grant: 100, check: 10 * ms},
		{name: "short, far from the edge", left: time.Second, grant: 9, holdOff: 249 * ms},
		{name: "short, near the edge", left: 200 * ms, grant: 9, holdOff: 200 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, local.Policy{
				Cap: 1000, Tokens: 1000, Per: 10 * time.Second,
				Call: lua.Call{Algorithm: lua.FixedWindow, Period: 10e6}, Window: c.window,
			})
			r.b.SetDemand(100)
			r.ask(8)
			r.ask(1)
			call := r.begin()
			if call.Want <= 9 || call.TTL != us(time.Second) {
				t.Fatalf("%+v", call)
			}
			r.now += ms
			e, ok := r.b.Accept(r.now, call.Seq, lua.Reply{Grant: min(c.grant, call.Want), Active: 2, TTLLeft: us(c.left)})
			if !ok {
				t.Fatal("not accepted")
			}
			if c.check > 0 && e.Check != r.now+c.check {
				t.Errorf("looked at again in %v, want %v", e.Check-r.now, c.check)
			}
			if off := r.b.HoldOff(); c.holdOff > 0 && off != r.now+c.holdOff {
				t.Errorf("a hold-off of %v, want %v", off-r.now, c.holdOff)
			}
		})
	}
}
