package tiered_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A request is decided by the limit that it carries: at its first use, after another one, and after an eviction.
func TestCarriedLimit(t *testing.T) {
	for name, c := range map[string]struct {
		policy tiered.Policy
		limit  tiered.Limit
		want   int64 // admitted at once, and no more
	}{
		"larger":    {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.PerHour(30), 30},
		"smaller":   {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.PerHour(3), 3},
		"burst":     {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.PerHour(3).WithBurst(7), 7},
		"none":      {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.Limit{}, 10},
		"blocked":   {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.Blocked(), 0},
		"unlimited": {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.Unlimited(), 100},
		"instead of PerKey's": {tiered.Policy{
			Limit: tiered.PerHour(10), PerKey: func(string) tiered.Limit { return tiered.PerHour(5) },
		}, tiered.PerHour(20), 20},
		"of an open policy": {tiered.Policy{Limit: tiered.Unlimited()}, tiered.PerHour(4), 4},
		"fixed window":      {tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.FixedWindow}, tiered.PerHour(20), 20},
		"sliding window": {
			tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.SlidingWindow}, tiered.PerDay(20), 20,
		},
		"sliding log": {tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.SlidingLog}, tiered.PerHour(20), 20},
		"invalid":     {tiered.Policy{Limit: tiered.PerHour(10)}, tiered.PerHour(-5), 10},
		"another window": {
			tiered.Policy{Limit: tiered.PerHour(10), Algorithm: tiered.FixedWindow}, tiered.PerDay(20), 10,
		},
		"beside Also": {
			tiered.Policy{Limit: tiered.PerHour(10), Also: []tiered.Limit{tiered.PerDay(90)}}, tiered.PerHour(20), 10,
		},
	} {
		bubble(t, name, func(t *testing.T) {
			c.policy.Name, c.policy.Lease.Size = "p", tiered.NoLease
			l := limiter(t, remote.NewMemory(), c.policy, nil)
			admitted := int64(0)
			for range 100 {
				if d := l.For("k").WithLimit(c.limit).Allow(ctx); d.Allowed {
					admitted++
				}
			}
			if admitted != c.want {
				t.Errorf("%d admitted, want %d", admitted, c.want)
			}
			valid := c.limit != tiered.Limit{} && c.policy.CheckCarriedLimit(c.limit) == nil
			if faults := l.Group().Stats().Policies["p"].Faults.PerKey; (faults > 0) == (valid ||
				c.limit == tiered.Limit{}) {
				t.Errorf("%d faults of a limit that is valid: %v", faults, valid)
			}
			if !valid {
				return
			}
			d := l.For("k").WithLimit(c.limit).Allow(ctx)
			if limit, ok := l.LimitOf(d); !ok || limit != c.limit {
				t.Errorf("LimitOf is %v, %v", limit, ok)
			}
			// Peek and plain requests go by the limit that came last.
			if p := l.Peek(ctx, "k"); p.Burst != d.Burst || p.Allowed != d.Allowed {
				t.Errorf("Peek says %+v, Allow %+v", p, d)
			}
			if again := l.Allow(ctx, "k"); again.Burst != d.Burst || again.Allowed != d.Allowed {
				t.Errorf("a plain request: %+v, one with a limit: %+v", again, d)
			}
		})
	}
}

// All that a Use can do goes by its limit.
func TestCarriedLimitEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(1)}, nil)
		pro := tiered.PerSecond(10)
		if r := l.For("a").N(8).WithLimit(pro).Reserve(ctx); !r.Allowed {
			t.Error(r.Decision)
		} else {
			r.Cancel()
		}
		if d := tiered.All(l.For("b").N(3).WithLimit(pro), l.For("b").N(4)).Allow(ctx); !d.Allowed || d.Remaining != 3 {
			t.Errorf("two uses of one key: %+v", d)
		}
		if d := tiered.All(l.For("c").N(3).WithLimit(tiered.PerSecond(4)),
			l.For("c").N(4).WithLimit(pro)).Allow(ctx); !d.Allowed {
			t.Errorf("the larger of two limits: %+v", d)
		}
		begun := time.Now()
		for range 30 {
			ok(t, l.For("d").WithLimit(pro).Wait(ctx))
		}
		if took := time.Since(begun); took < 1900*time.Millisecond || took > 2200*time.Millisecond {
			t.Errorf("20 tokens more than the burst took %v, want 2 s", took)
		}
		var zero tiered.Use
		if d := zero.WithLimit(pro).Allow(ctx); d.Allowed {
			t.Error("the zero Use is admitted")
		}
	})
}

// A limit that the policy cannot have makes one line, with the rule.
func TestInvalidCarriedLimit(t *testing.T) {
	for _, c := range []struct {
		policy tiered.Policy
		limit  tiered.Limit
		want   string
	}{
		{tiered.Policy{Limit: tiered.PerHour(1)}, tiered.PerHour(-1), "Limit.Tokens is -1"},
		{tiered.Policy{Limit: tiered.PerHour(1), Algorithm: tiered.FixedWindow}, tiered.PerDay(1), "Per"},
		{
			tiered.Policy{Limit: tiered.PerHour(1), Also: []tiered.Limit{tiered.PerDay(1)}},
			tiered.PerHour(3),
			"Policy.Also has 1 limits: must be empty",
		},
		{
			tiered.Policy{Limit: tiered.PerHour(1), Also: []tiered.Limit{tiered.PerDay(1)}},
			tiered.PerHour(1),
			"Policy.Also has 1 limits: must be empty",
		}, // the policy's own
		{
			tiered.Policy{Limit: tiered.PerHour(90), Standing: tiered.StandingOn},
			tiered.PerHour(3),
			"Policy.Standing is on: must be off",
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log logged
			c.policy.Name = "p"
			l := must(tiered.New(remote.NewMemory(), c.policy, &tiered.Options{Logger: slog.New(slog.NewTextHandler(&log,
				nil))}))
			for range 3 {
				l.For("k").WithLimit(c.limit).Allow(ctx)
			}
			_ = l.Close(ctx)
			const line = "a request carried a limit that the policy cannot have: it is ignored"
			if s := log.String(); strings.Count(s, line) != 1 || !strings.Contains(s, c.want) {
				t.Errorf("%v: %s, want one line with %q", c.limit, s, c.want)
			}
		})
	}
}

// A key whose requests carried different limits goes by the one that was carried last, when nobody has carried a larger one
// for ten seconds: also if later requests carry none.
func TestRequestsWithoutALimitGoByTheLastOne(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *tiered.Limiter) tiered.Decision{
		"Allow": func(ctx context.Context, l *tiered.Limiter) tiered.Decision { return l.Allow(ctx, "user") },
		"All": func(ctx context.Context, l *tiered.Limiter) tiered.Decision {
			return tiered.All(l.For("user"), l.For("other")).Allow(ctx)
		},
		"Peek": func(ctx context.Context, l *tiered.Limiter) tiered.Decision { return l.Peek(ctx, "user") },
	} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(500)}, nil)
			for _, limit := range []tiered.Limit{tiered.PerMinute(1000), tiered.PerMinute(10)} {
				l.For("user").WithLimit(limit).Allow(t.Context())
			}
			for within := range 2 {
				if d := ask(t.Context(), l); within == 0 && d.Burst < 500 || within == 1 && d.Burst != 10 {
					t.Errorf("%d s after requests with 1000 and then 10 a minute: %d of %d remain", 12*within, d.Remaining, d.Burst)
				}
				time.Sleep(12 * time.Second)
			}
		})
	}
}

// A key that was carried as Unlimited or Blocked stays so for requests that carry none, also if requests had carried different
// limits before. (Issue 38; random plan 25990.)
func TestUnlimitedAndBlockedStayCarried(t *testing.T) {
	for _, c := range []struct {
		limit tiered.Limit
		allow bool
	}{{tiered.Unlimited(), true}, {tiered.Blocked(), false}} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(500)}, nil)
			for _, limit := range []tiered.Limit{tiered.PerMinute(5), tiered.PerMinute(3), c.limit} {
				l.For("user").WithLimit(limit).Allow(ctx)
			}
			for range 10 {
				peek, d := l.Peek(ctx, "user"), l.Allow(ctx, "user")
				if peek.Allowed != c.allow || d.Allowed != c.allow {
					t.Fatalf("carried %v last: Peek says %v, Allow %v", c.limit, peek.Reason, d.Reason)
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// Requests with different limits and plans, and reloads, at once neither hang nor race.
func TestCarriedLimitsAtOnce(t *testing.T) {
	l := limiter(t, remote.NewMemory(), freeAndPro, nil)
	limits := []tiered.Limit{tiered.PerSecond(100), tiered.PerSecond(5000), tiered.Unlimited(), tiered.Blocked()}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 300 {
				if i == 0 {
					p := l.Policy()
					p.Plans["pro"] = tiered.PerMinute(int64(1000 + n))
					ok(t, l.SetPolicy(p))
				}
				l.For("k").WithLimit(limits[i%4]).Allow(ctx)
				l.For("k").WithPlan([]string{"pro", "", "staff", "none"}[(i+n)%4]).Allow(ctx)
			}
		})
	}
	all.Wait()
}
