package httplimit_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// A rule that stands in for another one counts a request only if that has no key for it, whichever
// of the rules skips the request.
func TestNextStandsIn(t *testing.T) {
	g, _ := group(t)
	users, guests := limiter(t, g, "users", tiered.PerHour(100)), limiter(t, g, "guests", tiered.PerHour(100))
	all := limiter(t, g, "all", tiered.PerHour(100))
	named := func(name string) httplimit.Key {
		return httplimit.KeyFunc(func(r *http.Request) (string, error) {
			if v := r.Header.Get(name); v != "bad" {
				return v, nil
			}
			return "", errors.New("bad user")
		})
	}
	skip := func(r *http.Request) bool { return r.Header.Get("Free") != "" }
	h := wrap(t, []httplimit.Rule{
		{Limiter: users, Key: named("User"), Missing: httplimit.Next, Skip: skip},
		{Limiter: users, Key: named("Other"), Missing: httplimit.Next},
		{Limiter: guests, Key: httplimit.Header("Guest"), Missing: httplimit.Refuse},
		{Limiter: all, Key: httplimit.RemoteIP(), Missing: httplimit.Refuse},
	}, nil, ok)
	for _, c := range []struct {
		fields []string
		status int
		took   string // the policies and keys that a token was taken of
	}{
		{[]string{"User", "ann"}, 200, "users ann, all"},
		{[]string{"User", "ann", "Other", "bob", "Guest", "cid"}, 200, "users ann, all"},
		{[]string{"Other", "bob", "Guest", "cid"}, 200, "users bob, all"},
		{[]string{"Guest", "cid"}, 200, "guests cid, all"},
		{nil, 400, ""},
		{[]string{"User", "bad", "Guest", "cid"}, 400, ""},
		{[]string{"Other", "bad", "Guest", "cid"}, 400, ""},
		{[]string{"User", "ann", "Free", "1", "Guest", "cid"}, 200, "all"},
		{[]string{"Free", "1", "Guest", "cid"}, 200, "guests cid, all"},
	} {
		keys := map[string]func() int64{
			"users ann":  func() int64 { return left(users, "ann") },
			"users bob":  func() int64 { return left(users, "bob") },
			"guests cid": func() int64 { return left(guests, "cid") },
			"all":        func() int64 { return left(all, "192.0.2.1") },
		}
		before := map[string]int64{}
		for name, f := range keys {
			before[name] = f()
		}
		r := requestOf("")
		for i := 0; i < len(c.fields); i += 2 {
			r.Header.Set(c.fields[i], c.fields[i+1])
		}
		if status := do(h, r).StatusCode; status != c.status {
			t.Errorf("%q: status %d, want %d", c.fields, status, c.status)
		}
		for name, f := range keys {
			took := before[name] - f()
			if want := strings.Contains(c.took, name); took > 1 || (took == 1) != want {
				t.Errorf("%q: %d tokens of %s, want one: %v", c.fields, took, name, want)
			}
		}
	}
	_, err := httplimit.New([]httplimit.Rule{
		{Limiter: users, Key: named("User"), Missing: httplimit.Next},
		{Limiter: guests, Key: named("User"), Missing: httplimit.Exempt},
		{Limiter: users, Key: named("User"), Missing: httplimit.Next},
	}, nil)
	for _, want := range []string{`rules[2].Limiter has policy "users", as rules[0] has`, "rules[2].Missing is Next: must be Refuse, Exempt or"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
