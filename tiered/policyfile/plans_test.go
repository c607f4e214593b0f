package policyfile_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
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
