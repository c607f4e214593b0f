package policyfile_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

const withPlans = `version: 1
policies:
  - name: per-user
    limit: 100/min
    plans: {pro: 1000/min, staff: unlimited}
http:
  - match: /
    limits:
      - {policy: per-user, key: header X-User, plan: header X-Plan}
`

// A request goes by the plan whose name is in the header, and one without a plan, or with an unknown one, by the policy's limit.
func TestPlanInAHeader(t *testing.T) {
	for plan, want := range map[string]string{"": "100", "pro": "1000", "gold": "100", "Pro": "100", "staff": ""} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", "ann")
		r.Header["X-Plan"] = []string{" ", plan} // a blank field is none
		middleware(t, withPlans)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if got := w.Header().Get("X-RateLimit-Limit"); w.Code != http.StatusOK || got != want {
			t.Errorf("plan %q: %d, a limit of %q, want %q", plan, w.Code, got, want)
		}
	}
}

// A mistake in a plan is told at the plan, with line and column.
func TestMistakesInPlans(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"pro: 1000/min", "pro: 1000/minutes", `p.yaml:5:18: policies[0].plans.pro: limit "1000/minutes": "minutes"`},
		{"plans: {", "plans: {'': 7/min, ", `p.yaml:5:12: policies[0]: Policy.Plans is 3 plans: must have no plan ""`},
		{"pro: 1000/min", "' pro': 1000/min", `p.yaml:5:21: policies[0]: Policy.Plans[" pro"] is 1000/min: its name must be`},
		{"pro: 1000/min", "pro: 1000/min, algorithm: fixed", `p.yaml:5:39: policies[0].plans.algorithm: limit "fixed"`},
		{"limit: 100/min", "limit: unlimited", `p.yaml:4:12: policies[0]: Policy.Limit is Unlimited: must be a limit or Blocked with Plans`},
		{"    limit: 100/min\n", "", `p.yaml:3:5: policies[0]: Policy.Limit is zero: must be set`},
		{"    plans", "    keys: {ann: 1/min}\n    plans", `p.yaml:6:12: policies[0]: Policy.Plans is 2 plans: must be empty with PerKey`},
		{"    plans", "    standing: on\n    plans", `p.yaml:6:12: policies[0]: Policy.Plans is 2 plans: must be empty with Standing`},
		{"plan: header X-Plan", "plan: header", `p.yaml:9:54: http[0].limits[0].plan: is "header": must be header NAME`},
		{"plan: header X-Plan", "plan: metadata x", `p.yaml:9:54: http[0].limits[0].plan: is "metadata x": must be header NAME`},
		{"plan: header X-Plan", "plan: header a@b", `p.yaml:9:54: http[0].limits[0].plan: is Header("a@b"): must be the name of a header field`},
		{
			"    plans: {pro: 1000/min, staff: unlimited}\n", "",
			`p.yaml:8:54: http[0].limits[0].plan is "header X-Plan": policy "per-user" must have plans`,
		},
	} {
		text := strings.Replace(withPlans, c.from, c.to, 1)
		if _, err := policyfile.Parse("p.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", c.to, err, c.want)
		}
	}
	const window = "plans: {pro: 1000/h"
	text := strings.Replace(strings.Replace(withPlans, "plans: {pro: 1000/min", window, 1), "    limit", "    algorithm: fixed window\n    limit", 1)
	const want = `p.yaml:6:18: policies[0]: Policy.Plans["pro"].Per is 1h0m0s: must be that of Limit, 1m0s`
	if _, err := policyfile.Parse("p.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}
