package policyfile_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

const withRanges = `version: 1
policies:
  - {name: per-user, limit: 2/day, plans: {pro: 3/day}}
  - {name: per-address, limit: 2/day and 9/2d}
  - {name: partners, limit: 5/day}
  - {name: blocked, limit: blocked}
http:
  - match: /api/
    limits:
      - {policy: per-user, key: header X-User, plan: header X-Plan}
      - {policy: per-address, key: forwarded-for 10.0.0.0/8}
    ranges:
      10.0.0.0/8: unlimited
      10.6.0.0/16: partners
      10.6.6.0/24: blocked
      10.6.6.6: unlimited
      192.0.2.7: unlimited
      2001:db8::/32: partners
      2001:db8:6::1: blocked
      ::ffff:203.0.113.0/120: blocked
      198.51.100.0/24: blocked
`

// What comes from a range has the limit of the longest range that has its address, as the key of
// the rule's limits finds it, however the URL is spelled. All else has the rule's.
func TestRangesOfAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		peer, forwarded string
		user            string
		admitted        int // of 20
		blocked         int64
	}{
		"a stranger":                 {"192.0.2.1:1", "", "ann", 2, 0},
		"a stranger without a user":  {"192.0.2.1:1", "", "", 0, 0},
		"our own network":            {"10.0.0.3:1", "", "ann", 20, 0},
		"a health checker":           {"192.0.2.7:1", "", "", 20, 0},
		"its neighbor":               {"192.0.2.8:1", "", "ann", 2, 0},
		"through our proxy":          {"10.0.0.3:1", "192.0.2.1", "ann", 2, 0},
		"ours, through our proxy":    {"10.0.0.3:1", "10.1.2.3", "ann", 20, 0},
		"who says to be ours":        {"192.0.2.1:1", "10.1.2.3", "ann", 2, 0},
		"a part with another limit":  {"10.0.0.3:1", "10.6.0.1", "", 5, 0},
		"a part of that is blocked":  {"10.6.6.7:1", "", "ann", 0, 20},
		"an address in it is not":    {"10.6.6.6:1", "", "ann", 20, 0},
		"blocked":                    {"198.51.100.9:1", "", "ann", 0, 20},
		"blocked, as IPv4 in IPv6":   {"[::ffff:198.51.100.9]:1", "", "ann", 0, 20},
		"the range as IPv4 in IPv6":  {"203.0.113.77:1", "", "ann", 0, 20},
		"IPv6":                       {"[2001:db8::9]:1", "", "", 5, 0},
		"one address of IPv6":        {"[2001:db8:6::1]:1", "", "ann", 0, 20},
		"its neighbor in the /64":    {"[2001:db8:6::2]:1", "", "ann", 5, 0},
		"no range of IPv6":           {"[2001:db9::1]:1", "", "ann", 2, 0},
		"no address at all":          {"@", "", "ann", 0, 0},
		"proxy says what is no IP":   {"10.0.0.3:1", "unknown", "ann", 0, 0},
		"blocked says to be ours":    {"198.51.100.9:1", "10.0.0.1", "ann", 0, 20},
		"blocked, through our proxy": {"10.0.0.3:1", "10.0.0.1, 198.51.100.9", "ann", 0, 20},
	} {
		limit, g := middleware(t, withRanges, nil)
		admitted := 0
		for i := range 20 {
			target := []string{"/api/x", "/api//x", "/API/x", "/api/a%2Fb"}[i%4]
			if ask(limit(served), http.MethodGet, target, "peer", c.peer, "X-Forwarded-For", c.forwarded, "X-User", c.user) == ok {
				admitted++
			}
		}
		if blocked := g.Stats().Policies["blocked"].Requests.Blocked; admitted != c.admitted || blocked != c.blocked {
			t.Errorf("%s: %d admitted, want %d; %d counted as blocked, want %d", name, admitted, c.admitted, blocked, c.blocked)
		}
	}
}

// A request that meets two rules has the exceptions of each: blocked by one is blocked, and one
// policy counts it once.
func TestRangesOfSeveralRules(t *testing.T) {
	const file = `version: 1
policies:
  - {name: a, limit: 3/day}
  - {name: b, limit: 4/day}
  - {name: blocked, limit: blocked}
http:
  - match: /p/{id}/i
    limits: [{policy: a, key: ip}]
    ranges: {10.0.0.0/8: unlimited, 10.1.0.0/16: b, 10.2.0.0/16: unlimited}
  - match: /p/
    limits: [{policy: a, key: ip}]
    ranges: {10.1.0.0/16: b, 10.2.0.0/16: blocked}
`
	for peer, want := range map[string]int{"192.0.2.1:1": 3, "10.0.0.1:1": 3, "10.1.0.1:1": 4, "10.2.0.1:1": 0} {
		h, admitted := behind(t, file), 0
		for range 9 {
			if ask(h, http.MethodGet, "/p/a%2Fb/i", "peer", peer) == ok {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: %d admitted, want %d", peer, admitted, want)
		}
	}
}

// A handler settles what the rule's limits have cost, by their names. It makes no difference to it
// if a range has others.
func TestRangesAndSettle(t *testing.T) {
	const file = `version: 1
policies:
  - {name: a, limit: 100/day}
  - {name: b, limit: 200/day}
http:
  - match: /p/
    limits: [{policy: a, key: ip}]
    ranges: {10.0.0.0/8: unlimited, 10.1.0.0/16: b, 10.2.0.0/16: a}
`
	synctest.Test(t, func(t *testing.T) {
		limit, g := middleware(t, file, &httplimit.Options{Settle: true})
		h := limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), map[string]int64{"a": 50}); err != nil {
				t.Errorf("%s: %v", r.RemoteAddr, err)
			}
		}))
		for peer, left := range map[string][2]int64{
			"192.0.2.1": {50, 200}, "10.0.0.1": {100, 200}, "10.1.0.1": {100, 199}, "10.2.0.1": {50, 200},
		} {
			ask(h, http.MethodGet, "/p/x", "peer", peer+":1")
			time.Sleep(time.Second)
			for i, name := range []string{"a", "b"} {
				l, _ := g.Limiter(name)
				if d := l.Peek(t.Context(), peer); d.Remaining != left[i] {
					t.Errorf("%s has %d left of %s, want %d", peer, d.Remaining, name, left[i])
				}
			}
		}
	})
}

// Ranges of a File made by hand need an address.
func TestRangesWithoutAnAddress(t *testing.T) {
	f := &policyfile.File{HTTP: []policyfile.Route{{Match: "/", Exceptions: policyfile.Exceptions{Ranges: []policyfile.Range{{}}}}}}
	g := testgroup.New(t, remote.NewMemory(), nil)
	if _, err := f.Middleware(g, nil); err == nil || !strings.Contains(err.Error(), `http[0]: Exceptions.Address is "": must be an address of a client`) {
		t.Error(err)
	}
}
