package tiered_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// caller is a process that is asked so many times a second, by its policy's limit or by one that
// each request carries.
type caller struct {
	limit   tiered.Limit
	carries bool
	asks    float64
	lease   time.Duration // Lease.Period
}

// ask has callers share a key of one store, each in a Group of its own, and returns what was
// admitted and by how many tokens that exceeds the largest of their limits. first is the caller
// that was admitted first.
func ask(t *testing.T, seed uint64, callers []caller, length time.Duration) (admitted int64, over float64, first caller) {
	t.Helper()
	largest := callers[0].limit
	for _, c := range callers {
		if c.limit.Tokens > largest.Tokens {
			largest = c.limit
		}
	}
	bound := ideal.NewPolicer(largest.Tokens, largest.Per, max(largest.Burst, largest.Tokens))
	var mu sync.Mutex
	var all sync.WaitGroup
	store, start := remote.NewMemory(), time.Now()
	for i, c := range callers {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		own := rand.New(rand.NewPCG(seed, 1000+uint64(i)))
		var ownMu sync.Mutex
		g := must(tiered.NewGroup(store, &tiered.Options{Processes: len(callers), Random: func() float64 {
			ownMu.Lock()
			defer ownMu.Unlock()
			return own.Float64()
		}}))
		p := tiered.Policy{Name: "p", Limit: c.limit, FailMode: tiered.FailClosed, Lease: tiered.Lease{Period: c.lease}}
		if c.carries {
			p.Limit = tiered.PerSecond(10).WithBurst(10)
		}
		l := must(g.NewLimiter(p))
		all.Go(func() {
			defer func() { _ = g.Close(ctx) }()
			for {
				time.Sleep(time.Duration(r.ExpFloat64() / c.asks * 1e9))
				if time.Since(start) >= length {
					return
				}
				u := l.For("user")
				if c.carries {
					u = u.WithLimit(c.limit)
				}
				if u.Allow(ctx).Allowed {
					mu.Lock()
					if admitted++; admitted == 1 {
						first = c
					}
					bound.Admit(int64(time.Since(start)), 1)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return admitted, bound.Worst().Over, first
}

// While processes have different limits, as during a deploy or while tokens are replaced, a key can
// use the largest of them: no more than that allows, and nearly all of it.
//
// If a caller with the smaller limit is the first, it finds a bucket that is full by its own burst,
// and a larger burst leaves the level as it is. So the difference of the bursts is not there at
// first: 200 of 2000 where a limit is doubled. All else is used, but for what is in leases or has
// just come when the run ends: up to 60 tokens of the 1800.
func TestProcessesWithDifferentLimits(t *testing.T) {
	t.Parallel()
	free, pro := tiered.PerSecond(20).WithBurst(40), tiered.PerSecond(200).WithBurst(100)
	plans := func(asksPro, asksFree float64) []caller {
		return []caller{{pro, true, asksPro, 0}, {free, true, asksFree, 0}}
	}
	raised := func(old, new tiered.Limit, n int, asks float64) (all []caller) {
		for range n {
			all = append(all, caller{limit: old, asks: asks}, caller{limit: new, asks: asks})
		}
		return all
	}
	rates := func(factor int64, asksLarge, asksSmall float64) []caller {
		return []caller{
			{tiered.PerSecond(200).WithBurst(100), false, asksLarge, time.Minute},
			{tiered.PerSecond(200 / factor).WithBurst(100), false, asksSmall, time.Minute},
		}
	}
	hundred, twoHundred := tiered.PerSecond(100).WithBurst(200), tiered.PerSecond(200).WithBurst(400)
	for name, c := range map[string]struct {
		callers []caller
		seconds int64
		allowed int64
		least   float64 // part of that
	}{
		"plans, 150/s and 150/s":   {plans(150, 150), 6, 1300, 0.95},
		"plans, 300/s and 30/s":    {plans(300, 30), 6, 1300, 0.95},
		"plans, 300/s and 300/s":   {plans(300, 300), 6, 1300, 0.95},
		"raised, 1 and 1":          {raised(hundred, twoHundred, 1, 150), 8, 2000, 0.95},
		"raised, 3 and 3":          {raised(hundred, twoHundred, 3, 100), 8, 2000, 0.95},
		"raised fivefold, 1 and 1": {raised(tiered.PerSecond(20), tiered.PerSecond(100), 1, 60), 8, 900, 0.93},
		"raised fivefold, 3 and 3": {raised(tiered.PerSecond(20), tiered.PerSecond(100), 3, 40), 8, 900, 0.95},
		// Two with one limit of 100/s use as little of so few tokens: what is in leases at the end
		// is a larger part of them.
		"one limit, 1 and 1":       {raised(tiered.PerSecond(100), tiered.PerSecond(100), 1, 60), 8, 900, 0.93},
		"one burst, fourfold rate": {rates(4, 20, 400), 8, 1700, 0.95},
		"one burst, tenfold rate":  {rates(10, 20, 400), 8, 1700, 0.95},
	} {
		t.Run(name, func(t *testing.T) {
			var parts []string
			seeds := uint64(8)
			if testing.Short() {
				seeds = 2
			}
			for seed := range seeds {
				var admitted int64
				var over float64
				var first caller
				synctest.Test(t, func(t *testing.T) {
					admitted, over, first = ask(t, seed, c.callers, time.Duration(c.seconds)*time.Second)
				})
				largest := int64(0)
				for _, x := range c.callers {
					largest = max(largest, cmp.Or(x.limit.Burst, x.limit.Tokens))
				}
				part := float64(admitted) / float64(c.allowed-largest+cmp.Or(first.limit.Burst, first.limit.Tokens))
				parts = append(parts, fmt.Sprintf("%.3f", part))
				if over > 1e-3 { // clocks count in microseconds
					t.Errorf("seed %d: %v tokens more than the larger limit allows", seed, over)
				}
				if part < c.least {
					t.Errorf("seed %d: %d admitted, %.3f of what the larger limit allows from the first call on", seed, admitted, part)
				}
			}
			t.Logf("of the larger limit, from the first call on: %v", parts)
		})
	}
}

// While processes have different limits, each gets its part of the tokens: those with the larger
// limit no less than the others, which ask by a slower rate and would ask more often. So a deploy
// that raises a limit refuses no more in the new processes.
func TestLargerLimitGetsItsPart(t *testing.T) {
	for _, c := range []struct {
		name         string
		small, large tiered.Limit
		n            int // processes of each
		ask          float64
	}{
		{"plans", tiered.PerSecond(20).WithBurst(40), tiered.PerSecond(200).WithBurst(100), 1, 300},
		{"raised", tiered.PerSecond(100).WithBurst(200), tiered.PerSecond(200).WithBurst(400), 1, 150},
		{"raised in ten", tiered.PerSecond(1000), tiered.PerSecond(2000), 5, 300},
		{"the same limit", tiered.PerSecond(200).WithBurst(400), tiered.PerSecond(200).WithBurst(400), 1, 150},
	} {
		bubble(t, c.name, func(t *testing.T) {
			store := remote.NewMemory()
			var got [2]atomic.Int64
			var all sync.WaitGroup
			end := time.Now().Add(30 * time.Second)
			for i := range 2 * c.n {
				limit := c.small
				if i%2 == 1 {
					limit = c.large
				}
				l, err := tiered.New(store, tiered.Policy{Name: "p", Limit: limit, FailMode: tiered.FailClosed},
					nil)
				if err != nil {
					t.Fatal(err)
				}
				all.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 1))
					for time.Now().Before(end) {
						time.Sleep(time.Duration(r.ExpFloat64() / c.ask * 1e9))
						if l.Allow(context.Background(), "k").Allowed {
							got[i%2].Add(1)
						}
					}
					_ = l.Close(context.Background())
				})
			}
			all.Wait()
			small, large := got[0].Load(), got[1].Load()
			if 2*large < small || 2*small < large {
				t.Errorf("all ask equally often, and those with the larger limit got %d of %d", large, small+large)
			}
		})
	}
}

// Requests of one process carry one plan or the other by chance. The key has the larger one, and
// each Decision is about the plan that its request carries.
func TestRequestsWithDifferentLimits(t *testing.T) {
	free, pro := tiered.PerSecond(20).WithBurst(40), tiered.PerSecond(200).WithBurst(100)
	wide, fast := tiered.PerSecond(20).WithBurst(100), tiered.PerSecond(200).WithBurst(40)
	for name, c := range map[string]struct {
		plans [2]tiered.Limit
		some  float64 // part of the requests with the second plan
	}{
		"a tenth with the smaller plan": {[2]tiered.Limit{pro, free}, 0.1},
		"half with the smaller plan":    {[2]tiered.Limit{pro, free}, 0.5},
		"plans that cross":              {[2]tiered.Limit{wide, fast}, 0.5},
	} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(),
				tiered.Policy{Name: "p", Limit: tiered.PerSecond(10).WithBurst(10), FailMode: tiered.FailClosed}, nil)
			r := rand.New(rand.NewPCG(1, 2))
			bound, start, admitted, calls := ideal.NewPolicer(200, time.Second, 100), time.Now(), 0, 0
			for i := 0; time.Since(start) < 6*time.Second; i++ {
				time.Sleep(time.Duration(r.ExpFloat64() / 300 * 1e9))
				plan := c.plans[0]
				if i > 0 && r.Float64() < c.some {
					plan = c.plans[1]
				}
				d := l.For("user").WithLimit(plan).Allow(ctx)
				if d.Allowed {
					admitted++
					bound.Admit(int64(time.Since(start)), 1)
				}
				if d.Burst != plan.Burst || d.Remaining > plan.Burst {
					t.Fatalf("request %d with %v: %+v", i, plan, d)
				}
				if d.Tier == tiered.Remote {
					calls++
				}
				if limit, ok := l.LimitOf(d); !ok || limit.Burst != plan.Burst {
					t.Fatalf("request %d with %v: its Decision is by %v", i, plan, limit)
				}
			}
			if d := l.For("user").N(41).WithLimit(c.plans[1]).Allow(ctx); c.plans[1].Burst == 40 && d.Reason != tiered.ExceedsBurst {
				t.Errorf("41 tokens by a burst of 40: %+v", d)
			}
			t.Logf("%d admitted, %.3f of the larger plan, %d calls", admitted, float64(admitted)/1300, calls)
			if over := bound.Worst().Over; over > 1e-3 {
				t.Errorf("%v tokens more than the larger plan allows", over)
			}
			if admitted < 1300*94/100 {
				t.Errorf("%d admitted of 1300", admitted)
			}
		})
	}
}

// A plan that no request has carried for ten seconds does not hold any more, and a request that
// carries a limit of its own is not decided by that of another.
func TestPlanThatIsCarriedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)}, nil)
		free, pro := tiered.PerSecond(20).WithBurst(40), tiered.PerSecond(200).WithBurst(100)
		ask := func(n int64, plan tiered.Limit) tiered.Decision {
			return l.For("user").N(n).WithLimit(plan).Allow(ctx)
		}
		if d := ask(100, pro); !d.Allowed {
			t.Fatalf("%+v", d)
		}
		second := func(plan tiered.Limit) (admitted int) {
			for range 300 {
				if ask(1, plan).Allowed {
					admitted++
				}
				time.Sleep(time.Second / 300)
			}
			return admitted
		}
		for range 9 {
			if n := second(free); n < 150 {
				t.Fatalf("%d in a second, while the plan of 200/s is in use", n)
			}
		}
		time.Sleep(4 * time.Second)
		second(free)
		if n := second(free); n > 21 {
			t.Errorf("%d in a second by a plan of 20/s", n)
		}
		if d := ask(1, tiered.Blocked()); d.Allowed {
			t.Errorf("blocked: %+v", d)
		}
		time.Sleep(time.Second)
		if d := ask(1, free); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// Uses that are decided each by itself go each by the limit that it carries.
func TestSeparateUsesCarryTheirLimits(t *testing.T) {
	for name, second := range map[string]tiered.Limit{"a smaller limit": tiered.PerSecond(50), "blocked": tiered.Blocked()} {
		bubble(t, name, func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
			each := make([]tiered.Decision, 2)
			tiered.All(l.For("user").N(60).WithLimit(tiered.PerSecond(100)), l.For("user").N(10).WithLimit(second)).AllowSeparately(ctx, each)
			if !each[0].Allowed || each[0].Burst != 100 {
				t.Errorf("60 tokens by a limit of 100: %+v", each[0])
			}
			if each[1].Allowed != (second != tiered.Blocked()) {
				t.Errorf("10 tokens: %+v", each[1])
			}
		})
	}
}
