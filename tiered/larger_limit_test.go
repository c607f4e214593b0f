package tiered_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// caller is a process that is asked so many times a second, by its policy's limit or by one that each request carries.
type caller struct {
	limit   tiered.Limit
	carries bool
	asks    float64
}

// ask has callers share a key of one store, each in a Group of its own, and returns what was admitted and by how many
// tokens that exceeds the largest of their limits.
func ask(t *testing.T, seed uint64, callers []caller, length time.Duration) (admitted int64, over float64) {
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
		g, err := tiered.NewGroup(store, &tiered.Options{Processes: len(callers), Random: func() float64 {
			ownMu.Lock()
			defer ownMu.Unlock()
			return own.Float64()
		}})
		if err != nil {
			t.Fatal(err)
		}
		p := tiered.Policy{Name: "p", Limit: c.limit, FailMode: tiered.FailClosed}
		if c.carries {
			p.Limit = tiered.PerSecond(10).WithBurst(10)
		}
		l, err := g.NewLimiter(p)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer func() { _ = g.Close(context.Background()) }()
			for {
				time.Sleep(time.Duration(r.ExpFloat64() / c.asks * 1e9))
				if time.Since(start) >= length {
					return
				}
				u := l.For("user")
				if c.carries {
					u = u.WithLimit(c.limit)
				}
				if u.Allow(context.Background()).Allowed {
					mu.Lock()
					admitted++
					bound.Admit(int64(time.Since(start)), 1)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return admitted, bound.Worst().Over
}

// While processes have different limits, as during a deploy or while tokens are replaced, a key can use the largest of
// them: no more than that allows, and nearly all of it.
//
// If a caller with the smaller limit is the first, it finds a bucket that is full by its own burst. That is a tenth of what
// is allowed here where a limit is doubled: 1800 of 2000, and up to 60 of those are in leases at the end.
func TestProcessesWithDifferentLimits(t *testing.T) {
	free, pro := tiered.PerSecond(20).WithBurst(40), tiered.PerSecond(200).WithBurst(100)
	plans := func(asksPro, asksFree float64) []caller {
		return []caller{{pro, true, asksPro}, {free, true, asksFree}}
	}
	raised := func(old, new tiered.Limit, n int, asks float64) (all []caller) {
		for range n {
			all = append(all, caller{limit: old, asks: asks}, caller{limit: new, asks: asks})
		}
		return all
	}
	hundred, twoHundred := tiered.PerSecond(100).WithBurst(200), tiered.PerSecond(200).WithBurst(400)
	for name, c := range map[string]struct {
		callers []caller
		seconds int64
		allowed int64
		least   float64 // part of that
	}{
		"plans, 150/s and 150/s": {plans(150, 150), 6, 1300, 0.94},
		"plans, 300/s and 30/s":  {plans(300, 30), 6, 1300, 0.94},
		"plans, 300/s and 300/s": {plans(300, 300), 6, 1300, 0.94},
		"raised, 1 and 1":        {raised(hundred, twoHundred, 1, 150), 8, 2000, 0.86},
		"raised, 3 and 3":        {raised(hundred, twoHundred, 3, 100), 8, 2000, 0.86},
		"raised fivefold, 1 and 1": {
			raised(tiered.PerSecond(20), tiered.PerSecond(100), 1, 60), 8, 900, 0.88,
		},
		"raised fivefold, 3 and 3": {
			raised(tiered.PerSecond(20), tiered.PerSecond(100), 3, 40), 8, 900, 0.88,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var parts []string
			for seed := range uint64(8) {
				var admitted int64
				var over float64
				synctest.Test(t, func(t *testing.T) {
					admitted, over = ask(t, seed, c.callers, time.Duration(c.seconds)*time.Second)
				})
				part := float64(admitted) / float64(c.allowed)
				parts = append(parts, fmt.Sprintf("%.3f", part))
				if over > 1e-3 { // clocks count in microseconds
					t.Errorf("seed %d: %v tokens more than the larger limit allows", seed, over)
				}
				if part < c.least {
					t.Errorf("seed %d: %d admitted, %.3f of what the larger limit allows", seed, admitted, part)
				}
			}
			t.Logf("of the larger limit: %v", parts)
		})
	}
}

// A limit is lowered, and raised a day later. Its bucket is still in Redis then, full by the lower limit. So Redis hears of
// the higher one, and that counts from the change on.
func TestRaisedAfterItWasLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerHour(800)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		time.Sleep(4 * time.Second)
		if !l.AllowN(t.Context(), "user", 250).Allowed {
			t.Fatal("refused")
		}
		time.Sleep(time.Minute)
		if err := l.SetLimit(tiered.PerHour(20)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		if err := l.SetLimit(tiered.PerHour(800)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		admitted := 0
		for l.Allow(t.Context(), "user").Allowed {
			admitted++
		}
		if admitted != 800 {
			t.Errorf("800 per hour for an hour, nobody used the key, and it admits %d", admitted)
		}
	})
}
