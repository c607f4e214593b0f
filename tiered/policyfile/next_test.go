package policyfile_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/httplimit"
)

// passes sends requests and counts those that are admitted.
func passes(h http.Handler, n int, target string, fields ...string) (passed int) {
	for range n {
		if ask(h, http.MethodGet, target, fields...) == ok {
			passed++
		}
	}
	return passed
}

// Who has an API key is counted by it, wherever it is, and who has none by address: missing: next.
func TestByKeyElseByAddress(t *testing.T) {
	h := behind(t, `version: 1
policies:
  - {name: users, limit: 50/h}
  - {name: anonymous, limit: 6/h}
http:
  - match: /
    limits:
      - {policy: users, key: credential X-Api-Key, missing: next}
      - {policy: users, key: query api_key, missing: next}
      - {policy: anonymous, key: ip 24 56}
`)
	for _, c := range []struct {
		name   string
		target string
		fields []string
		want   int
	}{
		{"by a header", "/", []string{"X-Api-Key", "ann"}, 50},
		{"the same key in the query", "/?api_key=ann", nil, 0},
		{"the header counts first", "/?api_key=cid", []string{"X-Api-Key", "ann"}, 0},
		{"by the query, from the same address", "/x?a=1&api_key=bob", nil, 50},
		{"by address", "/", []string{"peer", "192.0.2.8:1"}, 6},
		{"its /24", "/", []string{"peer", "192.0.2.9:1", "X-Api-Key", " "}, 0},
		{"an address of IPv6", "/?api_key=", []string{"peer", "[2001:db8::1]:1"}, 6},
		{"its /56", "/?other=ann", []string{"peer", "[2001:db8:0:ff::1]:1"}, 0},
		{"another /56", "/", []string{"peer", "[2001:db8:0:100::1]:1"}, 6},
	} {
		if n := passes(h, 60, c.target, c.fields...); n != c.want {
			t.Errorf("%s: %d of 60 pass, want %d", c.name, n, c.want)
		}
	}
}

// Of a request that meets several routes, a limit has counted what it has seen a key of, and
// nothing else.
func TestWhatARouteHasNotCountedTheNextCounts(t *testing.T) {
	for _, c := range []struct {
		name       string
		first      string // the limits of the more specific route
		then       string // of the other one
		user       string
		want, code int // admitted, and how others are answered
	}{
		{"exempt, then refuse", "{policy: a, key: header U, missing: exempt}", "{policy: a, key: header U}", "", 0, 400},
		{"exempt, then counted once", "{policy: a, key: header U, missing: exempt}", "{policy: a, key: header U}", "ann", 4, 429},
		{"together, then refuse", "{policy: a, key: header U, missing: together}", "{policy: a, key: header U}", "", 0, 429},
		{
			"by user, then by address", "{policy: a, key: header U, missing: next}, {policy: b, key: ip}", "{policy: b, key: ip}",
			"ann", 2, 429,
		},
		{
			"by user, then by user or address", "{policy: a, key: header U, missing: exempt}",
			"{policy: a, key: header U, missing: next}, {policy: b, key: ip}", "", 2, 429,
		},
		{
			"the same by user", "{policy: a, key: header U, missing: exempt}",
			"{policy: a, key: header U, missing: next}, {policy: b, key: ip}", "ann", 4, 429,
		},
	} {
		h := behind(t, fmt.Sprintf(`version: 1
policies: [{name: a, limit: 4/h}, {name: b, limit: 2/h}]
http:
  - {match: '/p/{id}/issues', limits: [%s]}
  - {match: /, limits: [%s]}
`, c.first, c.then))
		if n := passes(h, 9, "/p/g%2Fn/issues", "U", c.user); n != c.want {
			t.Errorf("%s: %d of 9 pass, want %d", c.name, n, c.want)
		}
		if code := ask(h, http.MethodGet, "/p/g%2Fn/issues", "U", c.user); code != c.code {
			t.Errorf("%s: status %d, want %d", c.name, code, c.code)
		}
	}
}

// The policies of limits that stand in for each other can be settled where a range has another
// limit.
func TestNextWithRangesAndSettle(t *testing.T) {
	m, _ := middleware(t, `version: 1
policies: [{name: a, limit: 4/h}, {name: b, limit: 6/h}]
http:
  - match: /
    limits: [{policy: a, key: header U, missing: next}, {policy: a, key: query u, missing: next}, {policy: b, key: ip}]
    ranges: {10.0.0.0/8: b}
`, &httplimit.Options{Settle: true})
	h := m(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if err := httplimit.Settle(r.Context(), map[string]int64{"a": 2, "b": 3}); err != nil {
			t.Error(err)
		}
	}))
	for _, c := range []struct {
		target, peer string
		want         int
	}{{"/?u=ann", "192.0.2.1:1", 2}, {"/", "192.0.2.1:1", 2}, {"/?u=bob", "10.0.0.1:1", 2}, {"/", "10.0.0.1:1", 0}} {
		if n := passes(h, 9, c.target, "peer", c.peer); n != c.want {
			t.Errorf("%s from %s: %d pass, want %d", c.target, c.peer, n, c.want)
		}
	}
}

// What stands for an address may have bits in a file, whatever finds it.
func TestBitsOfAnAddress(t *testing.T) {
	for _, key := range []string{
		"ip 24 48", "hops 2 24 48", "forwarded 10.0.0.0/8 24 48", "forwarded-for 10.0.0.0/8 fd00::/8 24 48", "header-ip X-Real-IP 10.0.0.0/8 24 48",
	} {
		f := parse(t, "version: 1\npolicies: [{name: a, limit: 1/s}]\nhttp: [{match: /, limits: [{policy: a, key: "+key+"}]}]\n")
		if k := f.HTTP[0].Limits[0].Key[0]; k.IPv4 != 24 || k.IPv6 != 48 || k.String() != key {
			t.Errorf("%s is read as %+v, and written %s", key, k, k)
		}
	}
	if l, err := tiered.ParseLimit("5/15min"); err != nil || l != (tiered.Limit{Tokens: 5, Per: 15 * tiered.PerMinute(1).Per}) {
		t.Errorf("5/15min: %v, %v", l, err)
	}
}
