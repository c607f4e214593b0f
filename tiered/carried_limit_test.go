package tiered_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A request is decided by the limit that it carries: at its first use, after another one, and after
// an eviction.
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
		"one of two": {
			tiered.Policy{Limit: tiered.PerHour(10).And(tiered.PerDay(90))}, tiered.PerHour(20), 10,
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
			valid := c.limit != tiered.Limit{} && c.policy.CheckLimit(c.limit) == nil
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
			// Peek and plain requests go by the policy's own, at once.
			own := c.policy.Limit
			if c.policy.PerKey != nil {
				own = c.policy.PerKey("k")
			}
			burst := max(own.Burst, own.Tokens)
			if p := l.Peek(ctx, "k"); p.Burst != burst {
				t.Errorf("Peek says %+v, want burst %d", p, burst)
			}
			if plain := l.Allow(ctx, "k"); plain.Burst != burst {
				t.Errorf("a plain request: %+v, want burst %d", plain, burst)
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
			tiered.Policy{Limit: tiered.PerHour(1).And(tiered.PerDay(1))},
			tiered.PerHour(3),
			"Policy.Limit is 1 limit: must be 2 limits, as Limit is, because the buckets in Redis count by them",
		},
		{
			tiered.Policy{Limit: tiered.PerHour(1).And(tiered.PerDay(1))},
			tiered.PerHour(1).And(tiered.PerWeek(1)),
			"Policy.Limit.Also[0].Per is 168h0m0s: must be that of Limit.Also[0], 24h0m0s, because the buckets in Redis count by it",
		},
		{
			tiered.Policy{Limit: tiered.PerHour(1).And(tiered.PerDay(1)), Algorithm: tiered.SlidingWindow},
			tiered.PerHour(1).And(tiered.Limit{Tokens: 1, Per: 24 * time.Hour, Precision: time.Hour}),
			"Policy.Limit.Also[0].Precision is 1h0m0s: must be that of Limit.Also[0], 24m0s, because the buckets in Redis count by it",
		},
		{
			tiered.Policy{Limit: tiered.PerHour(90), Standing: 1.0 / 8},
			tiered.Limit{Tokens: 8, Per: 10 * 365 * 24 * time.Hour},
			"Policy.Standing is 0.125: must be 0 with Limit 8/3650d: it takes more than a year to refill",
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

// plainly are requests without a limit for a key that has a burst of 500.
var plainly = map[string]func(context.Context, *tiered.Limiter) (burst int64, admitted bool){
	"Allow": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		d := l.Allow(ctx, "user")
		return d.Burst, d.Allowed
	},
	"All": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		d := tiered.All(l.For("user"), l.For("other")).Allow(ctx)
		return d.Burst, d.Allowed
	},
	"Peek": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		d := l.Peek(ctx, "user")
		return d.Burst, d.Allowed && l.Allow(ctx, "user").Allowed
	},
	"PeekEach": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		if all, err := l.PeekEach(ctx, "user"); err != nil || len(all) != 1 {
			return 0, false
		}
		return 500, l.Allow(ctx, "user").Allowed
	},
	"Reserve": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		r := l.Reserve(ctx, "user")
		return r.Burst, r.Allowed
	},
	"Wait": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return 500, l.Wait(ctx, "user") == nil
	},
	"AllowAtMost": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		n, d := l.AllowAtMost(ctx, "user", 1)
		return max(d.Burst, 500*n), n == 1
	},
	"plan \"\"": func(ctx context.Context, l *tiered.Limiter) (int64, bool) {
		d := l.For("user").WithPlan("").Allow(ctx)
		return d.Burst, d.Allowed
	},
}

// A request without a limit goes by the policy's own, or by PerKey's, whatever other requests
// carried before: at once where that is less than a request had in the last ten seconds, and in
// full after that.
func TestRequestsWithoutALimitGoByThePolicy(t *testing.T) {
	t.Parallel()
	for name, ask := range plainly {
		for before, limits := range map[string][]tiered.Limit{
			"larger": {tiered.PerMinute(1000)}, "smaller": {tiered.PerMinute(10)},
			"both": {tiered.PerMinute(1000), tiered.PerMinute(10)}, "unlimited": {tiered.Unlimited()}, "blocked": {tiered.Blocked()},
			"all": {tiered.PerMinute(5), tiered.PerMinute(1000), tiered.Unlimited(), tiered.Blocked()},
		} {
			for _, perKey := range []bool{false, true} {
				if testing.Short() && perKey != (before == "all") {
					continue
				}
				bubble(t, fmt.Sprint(name, " after ", before, ", PerKey ", perKey), func(t *testing.T) {
					p := tiered.Policy{Limit: tiered.PerMinute(500)}
					if perKey {
						p = tiered.Policy{Limit: tiered.PerMinute(7), PerKey: func(string) tiered.Limit { return tiered.PerMinute(500) }}
					}
					l := limiter(t, remote.NewMemory(), p, nil)
					for _, limit := range limits {
						l.For("user").WithLimit(limit).Allow(t.Context())
					}
					if burst, ok := ask(t.Context(), l); burst != 500 || !ok {
						t.Errorf("at once: admitted %t, by a burst of %d", ok, burst)
					}
					time.Sleep(2 * time.Minute) // the key is full, and nobody's larger limit holds
					admitted := 0
					for range 550 {
						if _, ok := ask(t.Context(), l); ok {
							admitted++
						}
					}
					if most := 500 + 10; admitted < 500 || admitted > most { // Wait gains a token in each 120 ms
						t.Errorf("minutes later %d of 550 are admitted, want 500", admitted)
					}
				})
			}
		}
	}
}

// So does a request that is under way when the first one with a limit comes.
func TestTheFirstCarriedLimitComesMeanwhile(t *testing.T) {
	for name, ask := range plainly {
		for _, cost := range []int64{1, 500} { // of what another process has taken, so that it is admitted or refused
			bubble(t, fmt.Sprint(name, " beside ", cost), func(t *testing.T) {
				s := newDistant(ms / 2)
				l := limiter(t, s, tiered.Policy{Limit: tiered.PerMinute(500)}, nil)
				other := limiter(t, s, tiered.Policy{Limit: tiered.PerMinute(500)}, nil)
				want(t, other.AllowN(ctx, "user", cost), tiered.Granted)
				time.AfterFunc(ms/4, func() { l.For("user").WithLimit(tiered.PerMinute(1000)).Allow(ctx) })
				if burst, ok := ask(ctx, l); name != "Wait" && (burst != 500 || ok != (cost == 1)) {
					t.Errorf("admitted %t, by a burst of %d", ok, burst)
				}
				time.Sleep(second)
			})
		}
	}
}

// Whatever a request carries, and whatever limit the process knows its key with, each verb goes by
// what the request carries: it admits a cost within that burst, refuses a larger one for good, and
// never panics.
func TestEachVerbGoesByItsLimit(t *testing.T) {
	t.Parallel()
	small, large := tiered.PerSecond(10), tiered.PerSecond(100)
	limits := map[string]tiered.Limit{
		"none": {}, "small": small, "large": large, "unlimited": tiered.Unlimited(), "blocked": tiered.Blocked(),
	}
	most := map[string]int64{"none": 50, "small": 10, "large": 100, "unlimited": 1 << 40, "blocked": 0}
	for verb, admits := range map[string]func(context.Context, *testing.T, tiered.Use) bool{
		"Allow": func(ctx context.Context, _ *testing.T, u tiered.Use) bool { return u.Allow(ctx).Allowed },
		"All": func(ctx context.Context, _ *testing.T, u tiered.Use) bool {
			return tiered.All(u).Allow(ctx).Allowed
		},
		"AllowEach": func(ctx context.Context, _ *testing.T, u tiered.Use) bool {
			each := make([]tiered.Decision, 1)
			u.AllowEach(ctx, each)
			return each[0].Allowed
		},
		"Reserve": func(ctx context.Context, _ *testing.T, u tiered.Use) bool {
			r := u.Reserve(ctx)
			if r.Allowed {
				r.Settle(1)
			}
			return r.Allowed
		},
		"Wait": func(ctx context.Context, _ *testing.T, u tiered.Use) bool {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return u.Wait(ctx) == nil
		},
		"Charge": func(ctx context.Context, t *testing.T, u tiered.Use) bool {
			ok(t, u.Charge())
			return true
		},
	} {
		for knownAs, known := range limits {
			for carries, carried := range limits {
				for i, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow, tiered.SlidingLog} {
					if testing.Short() && i%2 == 1 {
						continue
					}
					bubble(t, fmt.Sprint(verb, " with ", carries, " of a key with ", knownAs, ", ", a), func(t *testing.T) {
						l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(50), Algorithm: a}, nil)
						time.Sleep(time.Second)
						for _, n := range []int64{1, 10, 11, 50, 51, 100, 101} {
							l.For("user").WithLimit(known).Allow(ctx)
							if verb != "Wait" { // which may have to wait
								time.Sleep(15 * time.Second) // all tokens are back
							}
							got := admits(ctx, t, l.For("user").N(n).WithLimit(carried))
							if want := n <= most[carries] || verb == "Charge"; got != want {
								t.Errorf("cost %d: %t, want %t", n, got, want)
							}
						}
					})
				}
			}
		}
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

// What a window has left by the key's larger limit says when it is full, and not what the request's
// own limit leaves.
func TestCarriedLimitDoesNotProlongAWindow(t *testing.T) {
	bubble(t, "in an outage", func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100), Algorithm: tiered.FixedWindow}, nil)
		time.Sleep(100 * ms)
		l.Allow(ctx, "k")
		silence(t, store, l)
		time.Sleep(2 * second)
		d := l.For("k").WithLimit(tiered.PerSecond(10)).Allow(ctx)
		if d.Burst != 10 || d.Remaining != 9 || d.ResetAfter != 10*ms {
			t.Errorf("%v, want 9 of 10 left, full in 10ms", d)
		}
	})
}
