package tiered_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// standingPlans has standing shares of three plans: 100/s, 1000/s and 10/s.
func standingPlans(name string) tiered.Policy {
	p := standingPolicy(name)
	p.Plans = map[string]tiered.Limit{
		"pro": tiered.PerSecond(1000).WithBurst(2000), "free": tiered.PerSecond(10).WithBurst(80),
	}
	return p
}

// Rarely used keys are decided without Redis, each by the plan that its requests have.
func TestStandingSharesOfPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := fleetOf(t, remote.NewMemory(), 4, standingPlans("api"))
		round := func(from, of int) (local int) {
			plan, burst := []string{"", "pro", "free"}, []int64{200, 2000, 80}
			for i := range of {
				d := limiterOf(t, all[i%4], "api").For(fmt.Sprint("user ", from+i)).WithPlan(plan[i%3]).Allow(ctx)
				if !d.Allowed || d.Burst != burst[i%3] {
					t.Fatalf("user %d: %+v", i, d)
				}
				if d.Tier == tiered.Local {
					local++
				}
			}
			return local
		}
		round(0, 12) // the shares of a plan begin with its first request
		time.Sleep(time.Minute)
		before := calls(all...)
		if n := round(100, 3000); n < 2950 { // the rest meets another plan in a place
			t.Errorf("%d of 3000 were decided in memory", n)
		}
		if n := calls(all...) - before; n > 50 {
			t.Errorf("%d calls for 3000 users", n)
		}
	})
}

// A service with plans, 100 per minute and a dozen replicas, whose requests need a token of their
// user and one of their address: most are decided in memory once the shares have filled, which
// takes burst ÷ rate.
func TestOrdinaryServiceIsDecidedInMemory(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes it two minutes, and it counts only")
	}
	const replicas, users, perSecond = 12, 20_000, 600
	play := func(t *testing.T, s float64) (inMemory, calling float64) {
		user := tiered.Policy{
			Name: "user", Limit: tiered.PerMinute(100).WithBurst(200), Standing: s,
			Plans: map[string]tiered.Limit{"pro": tiered.PerMinute(1000), "team": tiered.PerMinute(5000)},
		}
		address := tiered.Policy{Name: "address", Limit: tiered.PerMinute(600), Standing: s}
		var all []*program
		store := remote.NewMemory()
		for range replicas {
			all = append(all, run(t, store, "", user, address))
		}
		time.Sleep(settleShares)
		random := rand.New(rand.NewPCG(1, 2))
		zipf := rand.NewZipf(random, 1.1, 1, users-1)
		ask := func() tiered.Decision {
			who, p, plan := zipf.Uint64(), all[random.IntN(replicas)], ""
			switch {
			case who%10 == 3:
				plan = "pro"
			case who%100 == 7:
				plan = "team"
			}
			return tiered.All(
				limiterOf(t, p, "user").For(fmt.Sprint("user ", who)).WithPlan(plan),
				limiterOf(t, p, "address").For(fmt.Sprint("address ", who)),
			).Allow(ctx)
		}
		requests := func(d time.Duration) (n, local int) {
			for start := time.Now(); time.Since(start) < d; n++ {
				if ask().Tier == tiered.Local {
					local++
				}
				time.Sleep(time.Second / perSecond)
			}
			return n, local
		}
		requests(4 * time.Minute)
		before := calls(all...)
		n, local := requests(2 * time.Minute)
		return float64(local) / float64(n), float64(calls(all...)-before) / float64(n)
	}
	for _, row := range []struct{ shared, inMemory, calls float64 }{
		{0, 0.30, 1.5}, {1. / 8, 0.68, 0.42}, {1. / 2, 0.80, 0.25},
	} {
		synctest.Test(t, func(t *testing.T) {
			inMemory, calls := play(t, row.shared)
			t.Logf("Standing %v: %.2f are decided in memory, at %.2f calls each", row.shared, inMemory, calls)
			if inMemory < row.inMemory || calls > row.calls {
				t.Errorf("want %v in memory at %v calls", row.inMemory, row.calls)
			}
		})
	}
}

// A key whose requests have different plans, in one process or in several, never gets more than its
// largest, and most of that. It has shares again when it keeps to one of them.
func TestStandingSharesOfPlansThatAlternate(t *testing.T) {
	t.Parallel()
	for _, every := range []int{1, 7, 400} { // how many requests go by one plan
		synctest.Test(t, func(t *testing.T) {
			policy := standingPlans("api")
			all := fleetOf(t, remote.NewMemory(), 3, policy)
			policy.Limit = policy.Plans["pro"]
			limits, admitted, start := boundsOf(policy), int64(0), time.Now()
			random := rand.New(rand.NewPCG(1, 1))
			for i := 0; time.Since(start) < 30*time.Second; i++ {
				plan := []string{"pro", "free", ""}[i/every%3]
				if d := limiterOf(t, all[random.IntN(3)], "api").For("user").WithPlan(plan).Allow(ctx); d.Allowed {
					admitted++
					limits.take(t, time.Since(start), 1)
				}
				time.Sleep(700 * time.Microsecond)
			}
			if least := int64(2000+30*1000) * 90 / 100; admitted < least {
				t.Errorf("every %d: %d tokens admitted, want %d", every, admitted, least)
			}
			time.Sleep(time.Minute)
			for range 20 { // one of them takes the places over
				for _, p := range all {
					limiterOf(t, p, "api").For("user").WithPlan("free").Allow(ctx)
				}
				time.Sleep(2 * time.Second)
			}
			time.Sleep(time.Minute)
			before := calls(all...)
			for range 3 {
				for _, p := range all {
					want(t, limiterOf(t, p, "api").For("user").WithPlan("free").Allow(ctx), tiered.Granted)
				}
			}
			if n := calls(all...) - before; n != 0 {
				t.Errorf("every %d: %d calls for a key that keeps to its plan", every, n)
			}
		})
	}
}
