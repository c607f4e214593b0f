package policyfile_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A request goes by the plan whose name is in the header, and one without a plan, or with an
// unknown one, by the policy's limit.
func TestPlanInAHeader(t *testing.T) {
	const file = `version: 1
policies: [{name: per-user, limit: 100/min, plans: {pro: 1000/min, staff: unlimited}}]
http: [{match: /, limits: [{policy: per-user, key: header X-User, plan: header X-Plan}]}]
`
	for plan, want := range map[string]string{"": "100", "pro": "1000", "gold": "100", "Pro": "100", "staff": ""} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", "ann")
		r.Header["X-Plan"] = []string{" ", plan} // a blank field is none
		behind(t, file).ServeHTTP(w, r)
		if got := w.Header().Get("X-RateLimit-Limit"); w.Code != ok || got != want {
			t.Errorf("plan %q: %d, a limit of %q, want %q", plan, w.Code, got, want)
		}
	}
}

// One plan of a request serves all limits of its rule that have plans, and a function of the
// options those of all rules that say no plan. A key's own limit beats a plan.
func TestOnePlanForAllLimits(t *testing.T) {
	const policies = `version: 1
policies:
  - {name: minute, limit: 100/min, plans: {pro: 1000/min, trial: 200/min}}
  - {name: month, limit: 70/month, algorithm: fixed window, plans: {pro: 700/month}, keys: {acme: 900/month}}
  - {name: all, limit: 5000/s}
http:
`
	const limits = "[{policy: minute, key: header X-User}, {policy: month, key: header X-User}, {policy: all, key: method}]"
	const free = "  - {match: /free, limits: [{policy: all, key: method}]}\n" // no plan is for it
	byFile := policies + "  - {match: /, limits: " + limits + ", plan: header X-Plan}\n" + free
	byCode := policies + "  - {match: /, limits: " + limits + "}\n" + free
	for _, c := range []struct{ user, plan, minute, month string }{
		{"ann", "", "100", "70"},
		{"ann", "pro", "1000", "700"},
		{"ann", "trial", "200", "70"},
		{"acme", "pro", "1000", "900"},
		{"acme", "trial", "200", "900"},
	} {
		for name, handler := range map[string]func() (http.Handler, *tiered.Group){
			"in the file": func() (http.Handler, *tiered.Group) {
				m, g := middleware(t, byFile, nil)
				return m(served), g
			},
			"as it is printed": func() (http.Handler, *tiered.Group) {
				m, g := middleware(t, parse(t, byFile).String(), nil)
				return m(served), g
			},
			"in code": func() (http.Handler, *tiered.Group) {
				m, g := middleware(t, byCode, &httplimit.Options{Plan: func(r *http.Request) string { return r.Header.Get("X-Plan") }})
				return m(served), g
			},
		} {
			h, g := handler()
			if status := ask(h, http.MethodGet, "/", "X-User", c.user, "X-Plan", c.plan); status != ok {
				t.Fatalf("%s, %+v: %d", name, c, status)
			}
			for policy, want := range map[string]string{"minute": c.minute, "month": c.month} {
				l, _ := g.Limiter(policy)
				left := l.For(c.user).WithPlan(c.plan).Peek(t.Context())
				if fmt.Sprint(left.Remaining+1) != want || fmt.Sprint(left.Burst) != want {
					t.Errorf("%s, %+v: %v, want all but one of %s", name, c, left, want)
				}
			}
			if s := g.Stats().Policies["all"].Faults; s.UnknownPlans != 0 || ask(h, http.MethodGet, "/free") != ok {
				t.Errorf("%s, %+v: %+v", name, c, s)
			}
		}
	}
}

// The plan of the options is that of places too, also if no rate has plans, and of a file that is
// followed. What checks the options tells nobody of a Redis that nobody has.
func TestPlanOfPlaces(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	o := &httplimit.Options{Plan: func(r *http.Request) string { return r.Header.Get("X-Plan") }}
	for _, limit := range []string{"{at_once: running, key: header X-User}", "{policy: rate, at_once: running, key: header X-User}"} {
		path := filepath.Join(t.TempDir(), "p.yaml")
		fatal.If(t, os.WriteFile(path, []byte(`version: 1
policies: [{name: rate, limit: 100/min}]
at_once: [{name: running, places: 1, plans: {pro: 3}}]
http: [{match: /, limits: [`+limit+`]}]
`), 0o600))
		w := fatal.Get(policyfile.Watch(path, testgroup.New(t, remote.NewMemory(), nil), &policyfile.Options{HTTP: o}))(t)
		for plan, want := range map[string]int{"": 1, "pro": 3} {
			var h http.Handler
			running := 0
			h = w.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				running++
				ask(h, http.MethodGet, "/", "X-User", "ann"+plan, "X-Plan", plan)
			}))
			if ask(h, http.MethodGet, "/", "X-User", "ann"+plan, "X-Plan", plan); running != want {
				t.Errorf("%s: %d of the plan %q ran, want %d", limit, running, plan, want)
			}
		}
		w.Close()
	}
	if strings.Contains(log.String(), "policies=none") {
		t.Errorf("the log has %s", log.String())
	}
}
