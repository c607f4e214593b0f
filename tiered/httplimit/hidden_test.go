package httplimit_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// The fields tell of the tightest limit that is not hidden, also if a hidden one is tighter or
// refuses. A policy that is only tried out is hidden too.
func TestHiddenRule(t *testing.T) {
	const all = "the user's, the address'"
	for _, c := range []struct {
		name                    string
		hidden, shadow, visible bool // of the address; visible is of the user
		user, address           int64
		fields                  []string // Limit and Remaining of three requests, "" if there are none
		last                    int      // the status of the third
		policies                string   // of RateLimit-Policy
	}{
		{"the tightest is told", false, false, true, 9, 2, []string{"2 1", "2 0", "2 0"}, 429, all},
		{"the tightest is hidden", true, false, true, 9, 3, []string{"9 8", "9 7", "9 6"}, 200, "the user's"},
		{"the hidden one refuses", true, false, true, 9, 2, []string{"9 8", "9 7", "9 7"}, 429, "the user's"},
		{"the other one refuses", true, false, true, 2, 9, []string{"2 1", "2 0", "2 0"}, 429, "the user's"},
		{"one that is tried out", false, true, true, 9, 2, []string{"9 8", "9 7", "9 6"}, 200, "the user's"},
		{"both are hidden", true, false, false, 9, 2, []string{"", "", ""}, 429, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			g, _ := group(t)
			user := limiter(t, g, "user", tiered.PerDay(c.user))
			address := testgroup.NewLimiter(t, g, tiered.Policy{Name: "address", Limit: tiered.PerDay(c.address), Shadow: c.shadow})
			perUser := perUser(user)
			perUser.Hidden = !c.visible
			h := wrap(t, []httplimit.Rule{
				perUser, {Limiter: address, Key: httplimit.Method(), Missing: httplimit.Refuse, Hidden: c.hidden},
			}, &httplimit.Options{IETFDraft11: true, Problem: true}, ok)
			for i, want := range c.fields {
				r := get(h, "ann")
				head := r.Header
				got := strings.TrimSpace(head.Get("X-RateLimit-Limit") + " " + head.Get("X-RateLimit-Remaining"))
				if status := r.StatusCode; got != want || i == 2 && status != c.last || i < 2 && status != http.StatusOK {
					t.Errorf("%s: request %d: %d with %q, want %q and at last %d", c.name, i, status, got, want, c.last)
				}
				if refused := r.StatusCode == 429; refused != (head.Get("Retry-After") != "") {
					t.Errorf("%s: %d with Retry-After %q", c.name, r.StatusCode, head.Get("Retry-After"))
				}
				draft := head.Get("RateLimit-Policy") + head.Get("RateLimit")
				if c.policies != all && strings.Contains(draft, "address") || strings.Contains(draft, "user") != c.visible {
					t.Errorf("%s: %s", c.name, draft)
				}
			}
			body := new(strings.Builder)
			_ = do(h, requestOf("ann")).Write(body)
			if named := strings.Contains(body.String(), `["address"]`); named != (c.name == "the tightest is told") {
				t.Errorf("%s: the problem names the limit: %v\n%s", c.name, named, body)
			}
		})
	}
}

// A request that costs nothing is told of the limits that are not hidden.
func TestHiddenRuleOfFreeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := group(t)
		user, address := limiter(t, g, "user", tiered.PerDay(9)), limiter(t, g, "address", tiered.PerDay(2))
		cost := int64(1)
		rules := []httplimit.Rule{perUser(user), perUser(address)}
		for i := range rules {
			rules[i].Hidden, rules[i].Cost = i == 1, func(*http.Request) int64 { return cost }
		}
		h := wrap(t, rules, nil, ok)
		get(h, "ann")
		cost = 0
		if r := get(h, "ann"); r.Header.Get("X-RateLimit-Limit") != "9" || r.Header.Get("X-RateLimit-Remaining") != "8" {
			t.Errorf("%+v", r.Header)
		}
	})
}
