package tiered_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What is charged afterwards is neither admitted by shares nor the trace of an outage. With what was admitted the sums of
// Stats are what callers saw.
func TestStatsOfCharges(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"direct":         {Limit: tiered.PerHour(800)},
		"leased":         {Limit: tiered.PerHour(800), Lease: tiered.Lease{Size: 100}},
		"fixed window":   {Limit: tiered.PerHour(800), Algorithm: tiered.FixedWindow},
		"sliding log":    {Limit: tiered.PerHour(800), Algorithm: tiered.SlidingLog},
		"standing":       {Limit: tiered.PerHour(800), Standing: tiered.StandingOn},
		"several limits": {Limit: tiered.PerHour(800), Also: []tiered.Limit{tiered.PerDay(4000)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := remote.NewMemory()
				p.Name = "api"
				l := limiter(t, store, p, nil)
				time.Sleep(3 * time.Hour)
				var admitted, charged, alone int64
				stats := func() tiered.PolicyStats {
					t.Helper()
					time.Sleep(time.Second)
					s := l.Group().Stats().Policies["api"]
					if s.Leases.Spent+s.Standing.Spent+s.Costs.Refunded+s.Costs.Charged != admitted+charged || s.Tokens.Fallback != alone {
						t.Errorf("spent %d, standing %d, refunded %d, charged %d, shared %d: want %d admitted and %d charged, %d by the share",
							s.Leases.Spent, s.Standing.Spent, s.Costs.Refunded, s.Costs.Charged, s.Tokens.Fallback, admitted, charged, alone)
					}
					return s
				}
				charge := func(n int64) {
					t.Helper()
					if err := l.Charge("user", n); err != nil {
						t.Fatal(err)
					}
					charged += n
				}
				charge(50)
				if s := stats(); s.Leases.Spent+s.Standing.Spent != 0 {
					t.Errorf("no request was admitted, and Spent is %d, Standing %d", s.Leases.Spent, s.Standing.Spent)
				}
				for i := range 30 {
					r := l.ReserveN(t.Context(), "user", 3)
					if !r.Allowed {
						t.Fatal(r.Decision)
					}
					admitted += 3
					actual := int64(i % 6)
					if r.Settle(actual); actual > 3 {
						charged += actual - 3
					}
				}
				charge(1)
				if s := stats(); s.Costs.Settled != 0 || s.Tokens.Fallback != 0 || s.Tokens.Open != 0 {
					t.Errorf("there was no outage: %d reported of %d", s.Costs.Settled, s.Tokens.Fallback)
				}
				for _, n := range l.Group().Stats().Nodes {
					if n.Outages.Settled != 0 {
						t.Errorf("there was no outage: a node heard of %d", n.Outages.Settled)
					}
				}
				store.Fail(errors.New("down"))
				ask := func() {
					switch l.Allow(t.Context(), "user").Reason {
					case tiered.Granted:
						admitted++
					case tiered.Fallback:
						alone++
					}
				}
				for range 200 {
					ask()
					time.Sleep(10 * time.Millisecond)
				}
				charge(7)
				stats()
				store.Fail(nil)
				for range 20 {
					time.Sleep(time.Second)
					ask()
				}
				if s := stats(); s.Costs.Settled != alone {
					t.Errorf("%d admitted in the outage, %d reported since", alone, s.Costs.Settled)
				}
			})
		})
	}
}
