package httplimit_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A request goes by its plan, alone or with other rules, and is charged by it afterwards.
func TestRuleWithPlans(t *testing.T) {
	for _, c := range []struct {
		plan      string
		burst     string
		unknown   int64
		remaining int64 // after 40 more were charged
	}{{"", "100", 0, 59}, {"pro", "1000", 0, 959}, {"gold", "100", 1, 59}} {
		for _, others := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				g, _ := group(t)
				users := testgroup.NewLimiter(t, g, tiered.Policy{
					Name: "per-user", Limit: tiered.PerDay(100), Plans: map[string]tiered.Limit{"pro": tiered.PerDay(1000)},
				})
				rules := []httplimit.Rule{perUser(users)}
				rules[0].Plan = func(r *http.Request) string { return r.Header.Get("X-Plan") }
				if others {
					all := limiter(t, g, "all", tiered.PerDay(1<<30))
					rules = append(rules, httplimit.Rule{Limiter: all, Key: httplimit.Method(), Missing: httplimit.Refuse})
				}
				h := wrap(t, rules, &httplimit.Options{Settle: true}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if err := httplimit.Settle(r.Context(), map[string]int64{"per-user": 41}); err != nil {
						t.Error(err)
					}
				}))
				r := requestOf("ann")
				r.Header.Set("X-Plan", c.plan)
				if got := do(h, r).Header.Get("X-RateLimit-Limit"); got != c.burst {
					t.Errorf("plan %q: a limit of %s, want %s", c.plan, got, c.burst)
				}
				time.Sleep(time.Second)
				if n := g.Stats().Policies["per-user"].Faults.UnknownPlans; n != c.unknown {
					t.Errorf("plan %q: %d unknown plans, want %d", c.plan, n, c.unknown)
				}
				if d := users.For("ann").WithPlan(c.plan).Peek(t.Context()); d.Remaining != c.remaining {
					t.Errorf("plan %q: %d left, want %d", c.plan, d.Remaining, c.remaining)
				}
			})
		}
	}
}
