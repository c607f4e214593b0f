package httplimit_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A key function's error refuses the request with 400 and its text, whatever Missing says. Nothing
// is taken for it.
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
		"joined":                    {httplimit.JoinKeys(httplimit.Method(), user), httplimit.Exempt, "ann", http.StatusBadRequest, why},
	} {
		for _, answer := range []string{"text", "problem", "denied"} {
			g, _ := group(t)
			all, one := limiter(t, g, "all", tiered.PerHour(10)), limiter(t, g, "one", tiered.PerHour(10))
			o := &httplimit.Options{Problem: answer == "problem"}
			var told httplimit.Refusal
			if answer == "denied" {
				o.Denied = func(w http.ResponseWriter, _ *http.Request, r httplimit.Refusal) {
					told = r
					http.Error(w, c.text, r.Status)
				}
			}
			r := get(wrap(t, []httplimit.Rule{
				{Limiter: all, Key: httplimit.Method(), Missing: httplimit.Refuse}, {Limiter: one, Key: c.key, Missing: c.missing},
			}, o, ok), c.user)
			body, _ := io.ReadAll(r.Body)
			if wrong := strings.Contains(c.text, ":"); r.StatusCode != c.status || !strings.Contains(string(body), c.text) ||
				answer == "denied" && wrong != errors.Is(told.KeyError, odd) {
				t.Errorf("%s, %s: %s %q, want %d %q; told %+v", name, answer, r.Status, body, c.status, c.text, told)
			}
			if n := left(all, http.MethodGet); (n == 10) != (c.status == http.StatusBadRequest) {
				t.Errorf("%s, %s: %d are left of the other rule", name, answer, n)
			}
		}
	}
}
