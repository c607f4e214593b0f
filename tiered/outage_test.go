package tiered_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// during is an outage for the whole fleet.
func during(from, to time.Duration) func(time.Duration, int) bool {
	return func(at time.Duration, _ int) bool { return at >= from && at < to }
}

// seeds is how many runs of a scenario a test makes: one in the short tests, which the race
// detector slows down.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return n
}

// A fleet goes through an outage of 15 s. In the 10 s after it, a process goes on alone until its
// breaker closes, openTime and a Timeout later at most, while Redis lends its whole rate to those
// that are back.
func TestFleetInAnOutage(t *testing.T) {
	notUnderRace(t)
	const rate, burst, down, up, end = 1000., 200., 10 * second, 25 * second, 45 * second
	alone := (openTime + tiered.DefaultTimeout).Seconds()
	for _, demand := range []float64{1.5, 3} {
		for mode, bound := range map[tiered.FailMode]float64{ // of what is over in the 10 s after it
			tiered.FailLocal: burst + rate*alone, tiered.FailOpen: burst + demand*rate*alone, tiered.FailClosed: 0,
		} {
			f := fleetRun{
				processes: 10, known: 10, limit: thousand, demand: demand, mode: mode, trip: 600 * time.Microsecond,
				length: end, down: during(down, up),
			}
			for seed := range seeds(2) {
				offers, _ := f.run(t, seed)
				over := func(from, to time.Duration) float64 { return worst(offers, f.limit, from, to).Over }
				before, during, after := over(0, down), over(down, up+10*second), over(up, up+10*second)
				refused, of := denied(offers, down+second, up)
				t.Logf("%v at %.1f r, seed %d: over before %.0f, from the outage to 10 s after it %.0f, after it %.0f of %.0f; %d of %d refused meanwhile",
					mode, demand, seed, before, during, after, bound, refused, of)
				if before > tolerance(f.limit) || after > bound+tolerance(f.limit) {
					t.Errorf("%v: over by %.1f before the outage, and by %.1f after it, want none and %.0f", mode, before, after, bound)
				}
				var longest time.Duration
				for _, o := range offers {
					longest = max(longest, o.done-o.at)
				}
				if longest > tiered.DefaultBudget+ms {
					t.Errorf("%v: a decision took %v", mode, longest)
				}
				switch mode {
				case tiered.FailLocal: // far below the formula, since the debt is charged meanwhile
					if during > 1.5*burst {
						t.Errorf("over-admission %.1f, want less than 1.5 bursts", during)
					}
					if admitted := float64(of - refused); admitted < 0.9*14*rate {
						t.Errorf("%.0f admitted in 14 s of outage, want the limit, about", admitted)
					}
				case tiered.FailOpen:
					if refused > 0 {
						t.Errorf("%d of %d refused while everything is admitted", refused, of)
					}
				case tiered.FailClosed:
					if during > tolerance(f.limit) {
						t.Errorf("over-admission %.1f, want none", during)
					}
				}
				if n, of := denied(offers, up, up+10*second); float64(of-n) < 0.7*10*rate {
					t.Errorf("%v: only %d admitted in the 10 s after the outage", mode, of-n)
				}
				// Back within 3 s: the limit is used again, in every mode (an open mode's debt is
				// 2C/r at most).
				if n, of := denied(offers, up+3*second, end); float64(of-n) < 0.95*17*rate {
					t.Errorf("%v: %d admitted in the 17 s from 3 s after the outage on", mode, of-n)
				}
			}
		}
	}
}

// Each process may admit more than a burst in the second until its breaker closes, and more where
// few share the limit. The floor of the bucket must not forgive that each time Redis comes back.
// Who asks for half of the limit is refused nothing.
func TestFleetOnAFlappingRedis(t *testing.T) {
	notUnderRace(t)
	for _, c := range []struct {
		processes int
		demand    float64
	}{{2, 1.5}, {4, 1.5}, {10, 1.5}, {10, 0.5}} {
		f := fleetRun{
			processes: c.processes, known: c.processes, limit: thousand, demand: c.demand, trip: 600 * time.Microsecond,
			length: 100 * second, down: func(at time.Duration, _ int) bool { return at > 2*second && at/second%2 == 0 },
		}
		for seed := range seeds(3) {
			offers, _ := f.run(t, seed)
			all := worst(offers, f.limit, 0, f.length)
			n, of := denied(offers, 0, f.length)
			t.Logf("%d processes at %.1f r, flapping for 98 s: over %.0f, %d of %d refused", c.processes, c.demand, all.Over, n, of)
			if all.Over > 2*200 || c.demand < 1 && n > 0 {
				t.Errorf("%d processes: over-admission %v, want less than 2 bursts; %d of %d refused", c.processes, all, n, of)
			}
		}
	}
}

func TestUsersWithinTheirLimitAreNotHurt(t *testing.T) {
	// 200 keys at 30 % of 100 per minute, over 5 processes, 30 s without Redis.
	f := fleetRun{
		processes: 5, known: 5, limit: tiered.PerMinute(100), demand: 0.3 * 200, keys: 200, trip: 600 * time.Microsecond,
		length: 90 * second, down: during(30*second, 60*second),
	}
	offers, _ := f.run(t, 1)
	n, of := denied(offers, 0, f.length)
	t.Logf("%d of %d requests of users within their limit refused (%.2f %%)", n, of, 100*float64(n)/float64(of))
	if float64(n) > 0.01*float64(of) {
		t.Errorf("%d of %d refused, want 1 %% at most", n, of)
	}
	if math.Abs(float64(of)-9000) > 600 {
		t.Errorf("%d offered: this is not the load that was meant", of)
	}
}

// A Redis that was never reached is probed although its clock is unknown, so it is found soon after
// it starts. Until then only probes are sent.
func TestRedisThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &counted{distant: newDistant(ms)}
		store.loseRequests.Store(true)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100), FailMode: tiered.FailOpen},
			&tiered.Options{Processes: 1})
		ask := func(d time.Duration) (reasons map[tiered.Reason]int) {
			reasons = make(map[tiered.Reason]int)
			for end := tiered.Engine(l.Group()).Now() + d; tiered.Engine(l.Group()).Now() < end; time.Sleep(10 * ms) {
				reasons[l.Allow(ctx, "k").Reason]++
			}
			return reasons
		}
		ask(2 * second)
		calls := store.calls.Load() + store.reports.Load()
		ask(10 * second)
		if n := store.calls.Load() + store.reports.Load() - calls; n < 10 || n > 21 {
			t.Errorf("%d calls and reports in 10 s without Redis, want a probe each 0.5 to 1 s", n)
		}
		store.loseRequests.Store(false)
		ask(1500 * ms)
		if r := ask(second); r[tiered.Open] > 0 || r[tiered.Granted] == 0 {
			t.Errorf("from 1.5 s after Redis came: %v", r)
		}
	})
}

// outage takes the store away until the breaker is open.
func outage(t *testing.T, store *distant, l *tiered.Limiter) {
	t.Helper()
	store.loseRequests.Store(true)
	n := tiered.Dispatch(l.Group()).Node(tiered.Engine(l.Group()).Store.Node(tiered.Engine(l.Group()).Store.Key(l.Policy().Name, "x")))
	for i := 0; n.State() == failover.Closed; i++ {
		if i > 100 {
			t.Fatal("the breaker does not open")
		}
		l.Allow(ctx, "outage")
		time.Sleep(tiered.DefaultTimeout)
	}
}

func TestOutageIsDecidedByEachFailMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := func(name string, m tiered.FailMode) tiered.Policy {
			return tiered.Policy{Name: name, Limit: tiered.PerDay(1).WithBurst(3), Lease: neverLeased, FailMode: m}
		}
		l := several(t, store, nil, p("local", tiered.FailLocal), p("open", tiered.FailOpen), p("closed",
			tiered.FailClosed))
		local, open, closed := l[0], l[1], l[2]
		outage(t, store, open)
		calls := store.calls.Load()

		want1 := func(d tiered.Decision, r tiered.Reason, policy string) {
			t.Helper()
			if d.Reason != r || d.Policy != policy || d.Allowed != (r == tiered.Fallback || r == tiered.Open) {
				t.Fatalf("%+v, want %v of %s", d, r, policy)
			}
		}
		// Closed refuses, and takes nothing from the share that was asked before it.
		for range 10 {
			want1(tiered.All(local.For("k"), open.For("k"), closed.For("k")).Allow(ctx), tiered.Unavailable, "closed")
		}
		// The share is whole, and is spent by what is admitted.
		for range 3 {
			want1(tiered.All(local.For("k"), open.For("k2")).Allow(ctx), tiered.Fallback, "local")
		}
		want1(tiered.All(local.For("k"), open.For("k2")).Allow(ctx), tiered.FallbackSpent, "local")
		want1(tiered.All(open.For("k"), open.For("k2")).Allow(ctx), tiered.Open, "open")
		// A share that is used up takes nothing from another.
		for range 10 {
			want1(tiered.All(local.For("a"), local.For("k")).Allow(ctx), tiered.FallbackSpent, "local")
		}
		for range 3 {
			want1(tiered.All(local.For("a"), local.For("b")).Allow(ctx), tiered.Fallback, "local")
		}
		// Unavailable is stricter than a share that comes back.
		want1(tiered.All(local.For("a"), closed.For("k")).Allow(ctx), tiered.Unavailable, "closed")
		s := local.Group().Stats().Policies
		if s["local"].Tokens.Fallback != 9 || s["open"].Tokens.Open < 3+1 || s["closed"].Tokens.Unavailable != 11 {
			t.Errorf("%+v", s)
		}
		if n := store.calls.Load() - calls; n > 1 {
			t.Errorf("%d calls into an outage", n)
		}

		// A share that was taken when another refused would be lost: the debt is not.
		store.loseRequests.Store(false)
		soonInBubble(t, func() bool { return closed.Allow(ctx, "probe").Reason == tiered.Granted })
		soonInBubble(t, func() bool { return local.Allow(ctx, "a").Reason == tiered.Limited }) // its pause may last longer
	})
}

// When Redis stops answering and no breaker is open yet, a share does not pay for a request that
// another policy refuses.
func TestShareDoesNotPayForARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		share, closed := direct("a-share", 3), direct("closed", 3)
		closed.FailMode = tiered.FailClosed
		l := several(t, store, nil, share, closed)
		time.Sleep(time.Second)
		store.loseRequests.Store(true)
		d := tiered.All(l[0].For("k"), l[1].For("k")).Allow(ctx)
		if want(t, d, tiered.Unavailable); d.Policy != "closed" {
			t.Fatalf("%+v", d)
		}
		for range 3 {
			if d := l[0].Allow(ctx, "k"); d.Reason != tiered.Fallback {
				t.Fatalf("%+v, want the share: it is untouched", d)
			}
		}
	})
}

// soonInBubble waits for what happens within ten virtual seconds.
func soonInBubble(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(10 * ms) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// In an outage of one of two stores, the other still decides its keys. It is not asked if a share
// is known to refuse.
func TestOutageOfOneOfTwoStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well, ill := newDistant(ms), newDistant(ms)
		a := several(t, well, nil, direct("a", 100))[0]
		b := several(t, ill, nil, direct("b", 2))[0]
		time.Sleep(time.Second)
		outage(t, ill, b)
		for range 2 {
			if d := tiered.All(a.For("k"), b.For("k")).Allow(ctx); !d.Allowed || d.Reason != tiered.Fallback {
				t.Fatalf("%+v, want b's share: it is the tighter", d)
			}
		}
		time.Sleep(100 * ms)
		calls := well.calls.Load()
		for range 10 {
			want(t, tiered.All(a.For("k"), b.For("k")).Allow(ctx), tiered.FallbackSpent)
		}
		time.Sleep(100 * ms)
		if n := well.calls.Load() - calls; n != 0 {
			t.Errorf("%d calls to the store that is well, for requests that the share of the other refuses", n)
		}
		if n := level(t, well.Memory, a, "k"); n != 98 {
			t.Errorf("%d left, want 98", n)
		}
	})
}

// That Redis refused a moment ago says nothing while it does not answer: the fail mode decides,
// however a caller asks.
func TestDenialDoesNotOutliveRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := direct("api", 1)
		p.FailMode = tiered.FailOpen
		l := several(t, store, nil, p, direct("other", 100))
		uses := []tiered.Use{l[0].For("k"), l[1].For("k")}
		want(t, l[0].Allow(ctx, "k"), tiered.Granted)
		want(t, l[0].Allow(ctx, "k"), tiered.Limited)
		calls := store.calls.Load()
		if want(t, l[0].Allow(ctx, "k"), tiered.Limited); store.calls.Load() != calls {
			t.Fatal("the denial is not known: this shows nothing")
		}
		outage(t, store, l[0])
		for name, ask := range map[string]func() tiered.Decision{
			"Peek":    func() tiered.Decision { return l[0].Peek(ctx, "k") },
			"Allow":   func() tiered.Decision { return l[0].Allow(ctx, "k") },
			"Reserve": func() tiered.Decision { return l[0].ReserveN(ctx, "k", 1).Decision },
			"All": func() tiered.Decision {
				var each [2]tiered.Decision
				tiered.All(uses...).AllowEach(ctx, each[:])
				return each[0]
			},
			"AllowSeparately": func() tiered.Decision {
				var each [2]tiered.Decision
				tiered.All(uses...).AllowSeparately(ctx, each[:])
				return each[0]
			},
		} {
			if d := ask(); d.Reason != tiered.Open {
				t.Errorf("%s: %+v", name, d)
			}
		}
	})
}

func TestCanceledAllTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(10 * ms)
		l := several(t, store, nil, direct("a", 5), direct("b", 5))
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(3*ms, cancel)
		d := tiered.All(l[0].For("k"), l[1].For("k")).Allow(ctx)
		if d.Reason != tiered.Canceled || d.Allowed {
			t.Errorf("%+v", d)
		}
		time.Sleep(200 * ms)
		for _, l := range l {
			if n := level(t, store.Memory, l, "k"); n != 5 {
				t.Errorf("%s: %d left, want 5", l.Policy().Name, n)
			}
		}
		books(t, l[0].Group())
	})
}

// In an outage a Decision tells what the fallback has left, so that a client that paces itself by
// it meets no wall.
func TestRemainingInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &afflicted{distant: newDistant(ms)}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerMinute(90), Lease: neverLeased}, &tiered.Options{Processes: 3})
		for range 10 {
			want(t, l.Allow(ctx, "k"), tiered.Granted)
		}
		store.cut(errors.New("down"))
		for left := int64(19); left >= 0; left-- {
			if d := l.Allow(ctx, "k"); d.Reason != tiered.Fallback || d.Remaining != left {
				t.Errorf("%v, want %d left", d, left)
			}
		}
		if d := l.Allow(ctx, "k"); d.Reason != tiered.FallbackSpent || d.Remaining != 0 {
			t.Errorf("%v, want nothing left", d)
		}
	})
}
