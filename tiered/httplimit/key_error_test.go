package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A key function's error refuses the request with 400 and its text, whatever Missing says. Nothing is taken for it.
func TestKeyFunctionsMayRefuse(t *testing.T) {
	odd := errors.New("X-User must be a number")
	user := httplimit.KeyFunc(func(r *http.Request) (string, error) {
		if name := r.Header.Get("X-User"); strings.Trim(name, "0123456789") == "" {
			return name, nil
		}
		return "", odd
	})
	const (
		plain = "The request does not identify its client"
		why   = plain + ": X-User must be a number"
	)
	for name, c := range map[string]struct {
		key     httplimit.Key
		missing httplimit.Missing
		user    string
		status  int
		text    string
	}{
		"a key":                     {user, httplimit.Refuse, "7", http.StatusOK, ""},
		"no key, refused":           {user, httplimit.Refuse, "", http.StatusBadRequest, plain + "."},
		"no key, exempt":            {user, httplimit.Exempt, "", http.StatusOK, ""},
		"an error, refused":         {user, httplimit.Refuse, "ann", http.StatusBadRequest, why},
		"an error, exempt":          {user, httplimit.Exempt, "ann", http.StatusBadRequest, why},
		"an error, counts together": {user, httplimit.Together, "ann", http.StatusBadRequest, why},
		"hashed":                    {user.Hashed(), httplimit.Exempt, "ann", http.StatusBadRequest, why},
		"joined": {
			httplimit.JoinKeys(httplimit.Method(), user), httplimit.Exempt, "ann", http.StatusBadRequest, why,
		},
	} {
		for _, answer := range []string{"text", "problem", "denied"} {
			t.Run(name+", "+answer, func(t *testing.T) {
				group := groups.New(t, remote.NewMemory(), nil)
				all, _ := group.NewLimiter(tiered.Policy{Name: "all", Limit: tiered.PerHour(10)})
				one, _ := group.NewLimiter(tiered.Policy{Name: "one", Limit: tiered.PerHour(10)})
				options := &httplimit.Options{Problem: answer == "problem"}
				var told httplimit.Refusal
				if answer == "denied" {
					options.Denied = func(w http.ResponseWriter, _ *http.Request, r httplimit.Refusal) { told = r }
				}
				limit, err := httplimit.New([]httplimit.Rule{
					{Limiter: all, Key: httplimit.Method(), Missing: httplimit.Refuse}, {Limiter: one, Key: c.key, Missing: c.missing},
				}, options)
				if err != nil {
					t.Fatal(err)
				}
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.Header.Set("X-User", c.user)
				w := httptest.NewRecorder()
				limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
				if w.Code != c.status || answer != "denied" && !strings.Contains(w.Body.String(), c.text) {
					t.Errorf("%d %q, want %d %q", w.Code, w.Body, c.status, c.text)
				}
				if wrong := strings.Contains(c.text, ":"); answer == "denied" && wrong != errors.Is(told.KeyError, odd) {
					t.Errorf("told %+v", told)
				}
				left := int64(10)
				if c.status == http.StatusOK {
					left = 9
				}
				if d := all.Peek(t.Context(), http.MethodGet); d.Remaining != left {
					t.Errorf("%d are left of the other rule, want %d", d.Remaining, left)
				}
			})
		}
	}
}
