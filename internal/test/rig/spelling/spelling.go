// Package spelling spells requests as clients may that want to evade a limit, and judges whether a
// policy file's limits count them. What serves the requests is real: a mux of net/http, a router of
// another framework.
package spelling

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// Route is a route of a policy file, and a request that meets it.
type Route struct{ Match, Method, Host, Path string }

// Routes are what the routers of other frameworks can have too.
var Routes = []Route{
	{"/downloads/", "GET", "x", "/downloads/big.iso"},
	{"POST /login", "POST", "x", "/login"},
	{"/users/{id}", "GET", "x", "/users/ann"},
	{"/users/{id}/files/{rest...}", "GET", "x", "/users/ann/files/a/b"},
	{"/Reports/q", "GET", "x", "/Reports/q"},
	{"/{$}", "GET", "x", "/"},
}

// Play spells n requests for the routes, and asks each server which of their patterns it serves a
// request as; "" is none. It is an error if that route's limit does not count the request.
func Play(t *testing.T, n int, servers map[string]func(*http.Request) (match string)) {
	t.Helper()
	var matches []string
	for _, r := range Routes {
		matches = append(matches, r.Match)
	}
	counted, random, served := Counting(t, matches), rand.New(rand.NewPCG(40, 6)), map[string]int{}
	for i := range n {
		r := Routes[i%len(Routes)]
		target, method := r.Path, r.Method
		for range random.IntN(5) {
			target = Target(random, target)
		}
		if random.IntN(8) == 0 {
			method = []string{"HEAD", "get", "POST", "post"}[random.IntN(4)]
		}
		if Parsed(method, target, r.Host) == nil {
			continue
		}
		have := counted(Parsed(method, target, r.Host))
		for name, serve := range servers {
			match := serve(Parsed(method, target, r.Host))
			if match == "" {
				continue
			}
			if served[name]++; !slices.Contains(have, match) {
				t.Errorf("%s serves %s %s as %s, and it counts for %q", name, method, target, match, have)
			}
		}
	}
	t.Log(served)
	for name := range servers {
		if served[name] < n/10 {
			t.Errorf("%s serves %d of %d requests only", name, served[name], n)
		}
	}
}

// Counting returns a function that reports which of these routes a request counts for. There is a
// policy file for each: its policy is blocked, and those of the others are unlimited.
func Counting(t *testing.T, matches []string) func(*http.Request) []string {
	t.Helper()
	var all []http.Handler
	for i := range matches {
		text := "version: 1\npolicies: [{name: this, limit: blocked}, {name: other, limit: unlimited}]\nhttp:\n"
		for j, match := range matches {
			policy := map[bool]string{true: "this", false: "other"}[i == j]
			text += fmt.Sprintf("  - {match: %q, limits: [{policy: %s, key: header X-Id}]}\n", match, policy)
		}
		limit := fatal.Get(middleware(t, text))(t)
		all = append(all, limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	return func(r *http.Request) (counted []string) {
		for i, h := range all {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.Clone(t.Context()))
			if w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests {
				t.Errorf("%s %s is answered with %d", r.Method, r.RequestURI, w.Code)
			}
			if w.Code == http.StatusTooManyRequests {
				counted = append(counted, matches[i])
			}
		}
		return counted
	}
}

// middleware is that of a policy file.
func middleware(t *testing.T, text string) (func(http.Handler) http.Handler, error) {
	f, err := policyfile.Parse("p.yaml", []byte(text))
	if err != nil {
		return nil, err
	}
	g := testgroup.New(t, remote.NewMemory(), nil)
	if err := g.SetPolicies(f.Policies); err != nil {
		return nil, err
	}
	return f.Middleware(g, nil)
}

// Parsed reads a request as a server does. It returns nil for one that a server refuses.
func Parsed(method, target, host string) *http.Request {
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nX-Id: ann\r\n\r\n", method, target, host)
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		return nil
	}
	return r
}

// Target writes the target of a request, as in GET /a/b, in another way, as a client may try that
// wants to evade a limit.
func Target(r *rand.Rand, target string) string {
	if target == "" {
		return "/"
	}
	at := 1 + r.IntN(len(target))
	slash := func(with string) string {
		all := strings.SplitAfter(target, "/")
		i := r.IntN(len(all))
		all[i] += with
		return strings.Join(all, "")
	}
	switch r.IntN(12) {
	case 0:
		if at < len(target) && target[at] != '/' && target[at] != '%' {
			return target[:at] + fmt.Sprintf([]string{"%%%02x", "%%%02X"}[r.IntN(2)], target[at]) + target[at+1:]
		}
	case 1:
		if i := strings.LastIndexByte(target[:at], '/'); i > 0 {
			return target[:i] + []string{"%2f", "%2F", "%5c", `\`, "//"}[r.IntN(5)] + target[i+1:]
		}
	case 2:
		return slash([]string{"/", "./", "x/../", "%2e/", "x/%2e%2e/", "%2e%2e/", "../", "..;/", "..%2f"}[r.IntN(9)])
	case 3:
		return target[:at] + strings.ToUpper(target[at:])
	case 4:
		return target[:at] + strings.ToLower(target[at:])
	case 5:
		return target + "/"
	case 6:
		return strings.TrimSuffix(target, "/")
	case 7:
		return target + []string{"/.", "/..", "/x/..", "%2f", "?x=/login", ";v=1", "//", "/%2e%2e/%2e%2e/login"}[r.IntN(8)]
	case 8:
		if i := strings.LastIndexByte(target[:at], '/'); i > 0 {
			return target[:i] + []string{";", ";v=1", ";a%2fb", "%3bx"}[r.IntN(4)] + target[i:]
		}
	case 9:
		return "/" + target
	case 10:
		return []string{"/x/..", "/login/..", "/downloads/..", "/%2e", "/downloads%2f..", "//x"}[r.IntN(6)] + target
	case 11:
		return target[:at] + []string{"%00", "%ff", "%c3%a9", "%25", "%252f", "{", "*", ":", "@"}[r.IntN(9)] + target[at:]
	}
	return target
}
