package httplimit_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A rule whose requests carry limits needs a policy that can have them. New says which field is in the way.
func TestPolicyThatCarriesNoLimit(t *testing.T) {
	for _, c := range []struct {
		policy tiered.Policy
		want   string
	}{
		{
			tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), Also: []tiered.Limit{tiered.PerHour(1000)}},
			"Policy.Also has 1 limits: must be empty",
		},
		{
			tiered.Policy{Name: "api", Limit: tiered.PerSecond(100), Standing: tiered.StandingOn},
			"Policy.Standing is on: must be off",
		},
		{tiered.Policy{Name: "api", Limit: tiered.PerSecond(10)}, ""},
	} {
		l, err := tiered.New(remote.NewMemory(), c.policy, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = httplimit.New([]httplimit.Rule{{
			Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse,
			Limit: func(*http.Request) tiered.Limit { return tiered.PerSecond(5) },
		}}, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "rules[0].Limit")) {
			t.Errorf("%+v: %v", c.policy, err)
		}
		_ = l.Close(context.Background())
	}
}

// A request of cost 0 that carries a limit is charged by that limit afterwards, also if it is the first of its key.
func TestFreeRequestIsChargedByTheLimitThatItCarries(t *testing.T) {
	for name, c := range map[string]struct {
		own, carried tiered.Limit
		used, left   int64
	}{
		"a larger one":  {tiered.PerDay(10), tiered.PerDay(1000), 400, 600},
		"a smaller one": {tiered.PerDay(1000), tiered.PerDay(100), 40, 60},
		"none":          {tiered.PerDay(1000), tiered.Limit{}, 40, 960},
		"unlimited":     {tiered.PerDay(10), tiered.Unlimited(), 40, math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				l := groups.Limiter(t, tiered.Policy{Name: "api", Limit: c.own})
				limit, err := httplimit.New([]httplimit.Rule{{
					Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse,
					Cost:  func(*http.Request) int64 { return 0 },
					Limit: func(*http.Request) tiered.Limit { return c.carried },
				}}, &httplimit.Options{Settle: true})
				if err != nil {
					t.Fatal(err)
				}
				limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if err := httplimit.Settle(r.Context(), map[string]int64{"api": c.used}); err != nil {
						t.Error(err)
					}
				})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
				time.Sleep(time.Second)
				if d := l.Peek(ctx, "192.0.2.1"); d.Remaining != c.left {
					t.Errorf("%d tokens are left, want %d", d.Remaining, c.left)
				}
			})
		})
	}
}
