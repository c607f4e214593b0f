package tiered_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// windowPolicies are those of ten per minute.
func windowPolicies() []tiered.Policy {
	limit := tiered.Limit{Tokens: 10, Per: time.Minute}
	return []tiered.Policy{
		{Name: "log", Limit: limit, Algorithm: tiered.SlidingLog},
		{Name: "fixed", Limit: limit, Algorithm: tiered.FixedWindow, Lease: neverLeased},
		{Name: "fixed-leased", Limit: limit, Algorithm: tiered.FixedWindow},
		{Name: "sliding", Limit: limit, Algorithm: tiered.SlidingWindow, Lease: neverLeased},
		{Name: "sliding-leased", Limit: limit, Algorithm: tiered.SlidingWindow},
		{Name: "sliding-two", Limit: limit, Algorithm: tiered.SlidingWindow, Also: []tiered.Limit{{
			Tokens: 100,
			Per:    time.Hour,
		}}},
	}
}

// eachWindow runs f in a bubble with a limiter of each algorithm over a Memory.
func eachWindow(t *testing.T, f func(t *testing.T, l *tiered.Limiter, m *remote.Memory)) {
	for _, p := range windowPolicies() {
		bubble(t, p.Name, func(t *testing.T) {
			m := remote.NewMemory()
			l := limiter(t, m, p, nil)
			f(t, l, m)
		})
	}
}

// A window admits what it holds and refuses the next request. The retry time is when that request is admitted, and
// it is not admitted much earlier.
func TestWindowsRefuseAndAdmitAgain(t *testing.T) {
	eachWindow(t, func(t *testing.T, l *tiered.Limiter, _ *remote.Memory) {
		for i := range 10 {
			if d := l.Allow(ctx, "k"); !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
		}
		d := l.Allow(ctx, "k")
		if d.Allowed || d.Reason != tiered.Limited || d.RetryAfter <= 0 || d.RetryAfter > 63*time.Second ||
			d.ResetAfter < d.RetryAfter-2*time.Second {
			t.Fatalf("%+v", d)
		}
		if d := l.Peek(ctx, "k"); d.Allowed || d.RetryAfter <= 0 {
			t.Errorf("peek: %+v", d)
		}
		time.Sleep(d.RetryAfter)
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Errorf("after its own retry time: %+v", d)
		}
	})
}

// Returned tokens can be taken again, a higher cost is charged, and a Reset forgets both.
func TestWindowsGiveBack(t *testing.T) {
	eachWindow(t, func(t *testing.T, l *tiered.Limiter, _ *remote.Memory) {
		r := l.ReserveN(ctx, "k", 10)
		if !r.Allowed {
			t.Fatal(r.Decision)
		}
		time.Sleep(2 * time.Second)
		if d := l.Allow(ctx, "k"); d.Allowed {
			t.Fatalf("%+v", d)
		}
		r.Settle(4)
		time.Sleep(6 * time.Second) // the refund is under way, and a denial is believed for 5 s
		if d := l.Peek(ctx, "k"); d.Remaining != 6 {
			t.Errorf("after the refund: %+v", d)
		}
		if d := l.AllowN(ctx, "k", 7); d.Allowed {
			t.Errorf("more than came back: %+v", d)
		}
		time.Sleep(6 * time.Second)
		r = l.ReserveN(ctx, "k", 2)
		if !r.Allowed {
			t.Fatalf("what came back: %+v", r.Decision)
		}
		r.Settle(5) // 3 more
		time.Sleep(time.Second)
		if d := l.Peek(ctx, "k"); d.Remaining != 1 {
			t.Errorf("after the debt: %+v", d)
		}
		ok(t, l.Reset(ctx, "k"))
		if d := l.Peek(ctx, "k"); d.Remaining != 10 {
			t.Errorf("after the reset: %+v", d)
		}
		if d := l.AllowN(ctx, "k", 10); !d.Allowed {
			t.Errorf("after the reset: %+v", d)
		}
	})
}

// What the share admitted in an outage is charged to the window in which it was admitted.
func TestWindowsChargeAnOutage(t *testing.T) {
	eachWindow(t, func(t *testing.T, l *tiered.Limiter, m *remote.Memory) {
		time.Sleep(time.Second)
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Fatal(d)
		}
		time.Sleep(3 * time.Second) // a lease is over
		m.Fail(context.DeadlineExceeded)
		shared := 0
		for range 20 {
			if d := l.Allow(ctx, "k"); d.Reason == tiered.Fallback {
				shared++
			}
			time.Sleep(50 * time.Millisecond)
		}
		if shared != 9 {
			t.Fatalf("the share admitted %d", shared)
		}
		m.Fail(nil)
		time.Sleep(3 * time.Second)
		l.Allow(ctx, "k") // settles
		time.Sleep(3 * time.Second)
		if d := l.Peek(ctx, "k"); d.Remaining > 3 { // a debt is cut where a lease, a quarter at most, is out meanwhile
			t.Errorf("%+v", d)
		}
		if s := l.Group().Stats().Policies[l.Policy().Name]; s.Costs.Settled == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// With several buckets on a key the tightest decides, and leased and returned tokens count in each.
func TestSeveralBuckets(t *testing.T) {
	for _, size := range []int64{0, tiered.NoLease} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{
				Name: "two", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(100)}, Lease: tiered.Lease{Size: size},
			}, nil)
			admitted, first := 0, 0
			for i := range 60 * 20 { // a minute at 20 per second
				if d := l.Allow(ctx, "k"); d.Allowed {
					admitted++
				}
				if i == 19 {
					first = admitted
				}
				time.Sleep(50 * time.Millisecond)
			}
			if first < 10 || first > 20 || admitted < 98 || admitted > 102 {
				t.Errorf("size %d: %d in the first second, %d in a minute", size, first, admitted)
			}
			d := l.Allow(ctx, "k")
			if d.Allowed || d.RetryAfter < time.Second || d.RetryAfter > 36*time.Second {
				t.Errorf("%+v", d)
			}
			if d := l.AllowN(ctx, "k", 11); d.Reason != tiered.ExceedsBurst {
				t.Errorf("more than the smaller burst: %+v", d)
			}
			ok(t, l.Reset(ctx, "k"))
			time.Sleep(5 * time.Second)
			r := l.ReserveN(ctx, "k", 10)
			if !r.Allowed {
				t.Fatal(r.Decision)
			}
			r.Cancel()
			time.Sleep(time.Second)
			if d := l.Peek(ctx, "k"); d.Remaining != 10 {
				t.Errorf("after the refund: %+v", d)
			}
		})
	}
}

// Settings that exclude each other are an error that names field, value and rule.
func TestAlgorithmMistakes(t *testing.T) {
	minute := tiered.Limit{Tokens: 10, Per: time.Minute}
	for _, c := range []struct {
		change func(p *tiered.Policy)
		want   string
	}{
		{func(p *tiered.Policy) { p.Algorithm = 9 }, "Policy.Algorithm is algorithm 9: must be"},
		{
			func(p *tiered.Policy) { p.Calendar = true },
			"Policy.Calendar is true: is of a FixedWindow only, and Algorithm is token bucket",
		},
		{
			func(p *tiered.Policy) { p.Limit.Precision = time.Second },
			"Policy.Limit.Precision is 1s: is of a SlidingWindow only",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Also = tiered.FixedWindow, []tiered.Limit{tiered.PerHour(1)} },
			"Policy.Also is 1 limits: is of a TokenBucket or",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Also = tiered.SlidingLog, []tiered.Limit{tiered.PerHour(1)} },
			"Policy.Also is 1 limits",
		},
		{
			func(p *tiered.Policy) { p.Also = []tiered.Limit{tiered.PerMinute(1)} },
			"Policy.Also[0].Per is 1m0s: must differ from that of Limit",
		},
		{ // their blocks are the same, and as many
			func(p *tiered.Policy) {
				p.Algorithm, p.Also = tiered.SlidingWindow,
					[]tiered.Limit{{Tokens: 9, Per: time.Minute - time.Microsecond, Precision: time.Second}}
			},
			"must differ from that of Limit, or the Precision must: both count by 60 blocks of 1s",
		},
		{func(p *tiered.Policy) { p.Also = []tiered.Limit{{}} }, "Policy.Also[0] is zero: must be set"},
		{
			func(p *tiered.Policy) { p.Also, p.MaxDebt = []tiered.Limit{tiered.Unlimited()}, 3 },
			"Policy.MaxDebt is 3: must be 0 for one burst, or at least the burst, here 10,",
		},
		{func(p *tiered.Policy) { p.Also = make([]tiered.Limit, 8) }, "Policy.Also is 8 limits: must be at most 7"},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Burst = tiered.FixedWindow, 20 },
			"Policy.Limit.Burst is 20: must be 0: a fixed window",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Lease.Size = tiered.SlidingLog, 2 },
			"Policy.Lease.Size is 2: must be 0 or NoLease: a SlidingLog",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Lease.Period = tiered.SlidingLog, time.Second },
			"Policy.Lease.Period is 1s: must be 0",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Tokens = tiered.SlidingLog, 200_000 },
			"Policy.Limit.Tokens is 200000: must be at most 100000",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Per = tiered.FixedWindow, 20*365*24*time.Hour },
			"must be at most 10 years",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Precision = tiered.SlidingWindow, time.Hour },
			"Policy.Limit.Precision is 1h0m0s: must be 1µs to Per",
		},
		{
			func(p *tiered.Policy) { p.Algorithm, p.Limit.Precision = tiered.SlidingWindow, 100*time.Millisecond },
			"Policy.Limit.Precision is 100ms: must divide Per into at most 511 blocks, here 600",
		},
	} {
		p := tiered.Policy{Name: "p", Limit: minute}
		ok(t, p.Validate())
		c.change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v:\n%v, want\n%s", p, err, c.want)
		}
	}
}
