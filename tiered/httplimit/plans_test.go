package httplimit_test

import (
	"context"
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
				g := groups.New(t, remote.NewMemory(), nil)
				err := g.SetPolicies([]tiered.Policy{
					{Name: "per-user", Limit: tiered.PerDay(100), Plans: tiered.Plans{"pro": tiered.PerDay(1000)}},
					{Name: "all", Limit: tiered.PerDay(1 << 30)},
				})
				if err != nil {
					t.Fatal(err)
				}
				users, _ := g.Limiter("per-user")
				all, _ := g.Limiter("all")
				rules := []httplimit.Rule{{
					Limiter: users, Key: httplimit.Header("X-User"), Missing: httplimit.Refuse,
					Plan: func(r *http.Request) string { return r.Header.Get("X-Plan") },
				}}
				if others {
					rules = append(rules, httplimit.Rule{Limiter: all, Key: httplimit.Method(), Missing: httplimit.Refuse})
				}
				limit, err := httplimit.New(rules, &httplimit.Options{Settle: true})
				if err != nil {
					t.Fatal(err)
				}
				w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
				r.Header.Set("X-User", "ann")
				r.Header.Set("X-Plan", c.plan)
				limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if err := httplimit.Settle(r.Context(), map[string]int64{"per-user": 41}); err != nil {
						t.Error(err)
					}
				})).ServeHTTP(w, r)
				if got := w.Header().Get("X-RateLimit-Limit"); got != c.burst {
					t.Errorf("plan %q: a limit of %s, want %s", c.plan, got, c.burst)
				}
				time.Sleep(time.Second)
				if d := users.Peek(t.Context(), "ann"); d.Remaining != c.remaining {
					t.Errorf("plan %q: %d left, want %d", c.plan, d.Remaining, c.remaining)
				}
				if n := g.Stats().Policies["per-user"].Faults.UnknownPlans; n != c.unknown {
					t.Errorf("plan %q: %d unknown plans, want %d", c.plan, n, c.unknown)
				}
			})
		}
	}
}

// New says which field of a rule does not go with plans.
func TestRuleThatCannotHavePlans(t *testing.T) {
	plan := func(*http.Request) string { return "" }
	limit := func(*http.Request) tiered.Limit { return tiered.Limit{} }
	for _, c := range []struct {
		plans tiered.Plans
		limit func(*http.Request) tiered.Limit
		want  string
	}{
		{nil, nil, `httplimit: rules[0].Plan is set, and policy "api" has no Plans: must be nil, or the policy must have plans`},
		{tiered.Plans{"pro": tiered.PerSecond(20)}, limit, "httplimit: rules[0].Limit is set: must be nil if Plan is set"},
		{tiered.Plans{"pro": tiered.PerSecond(20)}, nil, ""},
	} {
		l, err := tiered.New(remote.NewMemory(), tiered.Policy{Name: "api", Limit: tiered.PerSecond(10), Plans: c.plans}, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = httplimit.New([]httplimit.Rule{
			{Limiter: l, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse, Plan: plan, Limit: c.limit},
		}, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%v, want %q", err, c.want)
		}
		_ = l.Close(context.Background())
	}
}
