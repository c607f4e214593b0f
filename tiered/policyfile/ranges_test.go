package policyfile_test

import (
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
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

const withRanges = `version: 1
policies:
  - {name: per-user, limit: 2/day, plans: {pro: 3/day}}
  - {name: per-address, limit: 2/day, also: [9/2d]}
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

// limitsOfFile returns a handler behind the limits of a file, and the Group.
func limitsOfFile(t *testing.T, text string) (http.Handler, *tiered.Group) {
	t.Helper()
	f, err := policyfile.Parse("p.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	g := groups.New(t, remote.NewMemory(), nil, f.Policies...)
	m, err := f.Middleware(g, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), g
}

// What comes from a range has the limit of the longest range that has its address, as the key of the rule's limits finds it,
// however the URL is spelled. All else has the rule's.
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
		h, g := limitsOfFile(t, withRanges)
		admitted := 0
		for i := range 20 {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, []string{"/api/x", "/api//x", "/API/x", "/api/a%2Fb"}[i%4], nil)
			r.RemoteAddr = c.peer
			if c.forwarded != "" {
				r.Header.Set("X-Forwarded-For", c.forwarded)
			}
			if c.user != "" {
				r.Header.Set("X-User", c.user)
			}
			if h.ServeHTTP(w, r); w.Code == http.StatusOK {
				admitted++
			}
		}
		if blocked := g.Stats().Policies["blocked"].Requests.Blocked; admitted != c.admitted || blocked != c.blocked {
			t.Errorf("%s: %d admitted, want %d; %d counted as blocked, want %d", name, admitted, c.admitted, blocked, c.blocked)
		}
	}
}

// A request that meets two rules has the exceptions of each: blocked by one is blocked, and one policy counts it once.
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
		h, _ := limitsOfFile(t, file)
		admitted := 0
		for range 9 {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/p/a%2Fb/i", nil)
			r.RemoteAddr = peer
			if h.ServeHTTP(w, r); w.Code == http.StatusOK {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: %d admitted, want %d", peer, admitted, want)
		}
	}
}

// A handler settles what the rule's limits have cost, by their names. It makes no difference to it if a range has others.
func TestRangesAndSettle(t *testing.T) {
	f, err := policyfile.Parse("p.yaml", []byte(`version: 1
policies:
  - {name: a, limit: 100/day}
  - {name: b, limit: 200/day}
http:
  - match: /p/
    limits: [{policy: a, key: ip}]
    ranges: {10.0.0.0/8: unlimited, 10.1.0.0/16: b, 10.2.0.0/16: a}
`))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		g := groups.New(t, remote.NewMemory(), nil, f.Policies...)
		m, err := f.Middleware(g, &httplimit.Options{Settle: true})
		if err != nil {
			t.Fatal(err)
		}
		h := m(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if err := httplimit.Settle(r.Context(), map[string]int64{"a": 50}); err != nil {
				t.Errorf("%s: %v", r.RemoteAddr, err)
			}
		}))
		for peer, left := range map[string][2]int64{
			"192.0.2.1": {50, 200}, "10.0.0.1": {100, 200}, "10.1.0.1": {100, 199}, "10.2.0.1": {50, 200},
		} {
			r := httptest.NewRequest(http.MethodGet, "/p/x", nil)
			r.RemoteAddr = peer + ":1"
			h.ServeHTTP(httptest.NewRecorder(), r)
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

// Each mistake is one line, at its place.
func TestMistakesInRanges(t *testing.T) {
	const file = `version: 1
policies: [{name: a, limit: 1/s}]
http:
  - match: /
    limits: [{policy: a, key: ip}]
    ranges:
      10.0.0.0/8: unlimited
`
	for _, c := range []struct{ from, to, want string }{
		{"10.0.0.0/8:", "10.0.0.1/8:", `p.yaml:7:7: http[0].ranges: a range is "10.0.0.1/8" with bits after the first 8: must be 10.0.0.0/8, or 10.0.0.1 for one address`},
		{"10.0.0.0/8:", "2001:db8::1/32:", `p.yaml:7:7: http[0].ranges: a range is "2001:db8::1/32" with bits after the first 32: must be 2001:db8::/32, or 2001:db8::1`},
		{"10.0.0.0/8:", "10.0.0.0/33:", `p.yaml:7:7: http[0].ranges: a range is "10.0.0.0/33" and not valid: must be an address, or a range such as 10.0.0.0/8`},
		{"10.0.0.0/8:", "10.0.0:", `p.yaml:7:7: http[0].ranges: a range is "10.0.0" and not valid`},
		{"10.0.0.0/8:", "10.0.0.0-10.0.0.9:", `p.yaml:7:7: http[0].ranges: a range is and not valid`},
		{"10.0.0.0/8:", "fe80::1%eth0:", `p.yaml:7:7: http[0].ranges: a range is with a zone: must have none`},
		{"10.0.0.0/8:", "'::ffff:10.0.0.0/90':", `p.yaml:7:7: http[0].ranges: a range is "::ffff:10.0.0.0/90" of IPv4 addresses in IPv6 form: must have 96 bits at least`},
		{"10.0.0.0/8:", "sk-live-1:", `p.yaml:7:7: http[0].ranges: a range is and not valid`}, // a key is not shown
		{"10.0.0.0/8:", "'':", `p.yaml:7:7: http[0].ranges: a range is and not valid`},
		{"      10.0.0.0/8:", "      10.0.0.0/8: a\n      '::ffff:10.0.0.0/104':", `p.yaml:8:7: http[0].ranges: the range 10.0.0.0/8 is there twice: the first is in line 7`},
		{"unlimited", "blocked", `p.yaml:7:19: http[0].ranges: 10.0.0.0/8 is "blocked": must be unlimited, or the name of a policy in this file, as of one with limit: blocked`},
		{"unlimited", "5/s", `p.yaml:7:19: http[0].ranges: 10.0.0.0/8 is "5/s": must be unlimited`},
		{"unlimited", "[a]", `p.yaml:7:19: http[0].ranges is a list: must be a text`},
		{"key: ip", "key: header X", `p.yaml:7:7: http[0].address is missing: must say how the address of a client is found, as a key does, because no key of its limits is an address`},
		{"limits: [{policy: a, key: ip}]", "limits: []", `p.yaml:7:7: http[0].address is missing: must say`},
		{"key: ip", "key: [ip, forwarded-for 10.0.0.0/8]", `p.yaml:7:7: http[0].address is missing: must say how the address of a client is found, as a key does, because its limits have several`},
		{"    ranges:\n      10.0.0.0/8: unlimited\n", "    address: ip\n", `p.yaml:6:14: http[0].address is there without ranges: must be left out`},
		{"    ranges:", "    address: route\n    ranges:", `p.yaml:6:14: http[0].address: is "route": must be forwarded PROXIES, forwarded-for PROXIES,`},
		{"    ranges:", "    address: header-ip a@b 10.0.0.0/8\n    ranges:", `p.yaml:6:14: http[0].address: is HeaderIP("a@b"): must be the name of a header field`},
	} {
		text := strings.Replace(file, c.from, c.to, 1)
		if _, err := policyfile.Parse("p.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", c.to, err, c.want)
		}
	}
	f := &policyfile.File{HTTP: []policyfile.Route{{Match: "/", Exceptions: policyfile.Exceptions{Ranges: []policyfile.Range{{}}}}}}
	_, g := limitsOfFile(t, file)
	if _, err := f.Middleware(g, nil); err == nil || !strings.Contains(err.Error(), `http[0]: Exceptions.Address is "": must be an address of a client`) {
		t.Error(err)
	}
}
