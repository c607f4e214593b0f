package httplimit_test

import (
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A request of cost 0 that carries a limit is charged by that limit afterwards, also if it is the
// first of its key.
func TestFreeRequestIsChargedByTheLimitThatItCarries(t *testing.T) {
	for name, c := range map[string]struct {
		own, carried tiered.Limit
		used, left   int64
	}{
		"a larger one":  {tiered.PerDay(10), tiered.PerDay(1000), 400, 600},
		"a smaller one": {tiered.PerDay(1000), tiered.PerDay(100), 40, 60},
		"none":          {tiered.PerDay(1000), tiered.Limit{}, 40, 960},
		"unlimited":     {tiered.PerDay(10), tiered.Unlimited(), 40, math.MaxInt64},
		"several":       {tiered.PerDay(10).And(tiered.PerWeek(20)), tiered.PerDay(100).And(tiered.PerWeek(90)), 40, 50},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := group(t)
				l := limiter(t, g, "api", c.own)
				rule := perUser(l)
				rule.Cost = func(*http.Request) int64 { return 0 }
				rule.Limit = func(*http.Request) tiered.Limit { return c.carried }
				get(wrap(t, []httplimit.Rule{rule}, &httplimit.Options{Settle: true},
					http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						if err := httplimit.Settle(r.Context(), map[string]int64{"api": c.used}); err != nil {
							t.Error(err)
						}
					})), "ann")
				time.Sleep(time.Second)
				if n := l.For("ann").WithLimit(c.carried).Peek(t.Context()).Remaining; n != c.left {
					t.Errorf("%d tokens are left, want %d", n, c.left)
				}
			})
		})
	}
}
