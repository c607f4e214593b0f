package policyfile_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/groups"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// Browsers send preflights without a credential. A rule lets them pass by a word, or another rule limits nothing. Neither
// lets anything else pass.
func TestPreflightsMayPass(t *testing.T) {
	const none = http.StatusBadRequest // without a credential
	const limits = "    limits: [{policy: a, key: credential Authorization}]\n"
	for name, c := range map[string]struct {
		http               string
		preflight, options int
	}{
		"by default": {"  - match: /api/\n" + limits, none, none},
		"limited":    {"  - match: /api/\n    preflights: limit\n" + limits, none, none},
		"exempt":     {"  - match: /api/\n    preflights: exempt\n" + limits, 200, none},
		"exempt, with the key of a wildcard": {
			"  - match: /{x}/\n    preflights: exempt\n    limits: [{policy: a, key: [credential Authorization, path x]}]\n",
			200, none,
		},
		"a rule for all OPTIONS": {
			"  - match: /api/\n" + limits + "  - match: OPTIONS /api/\n    limits: []\n", 200, 200,
		},
	} {
		handler := limitedBy(t, "http:\n"+c.http)
		ask := func(method string, header ...string) int {
			r, a := httptest.NewRequest(method, "/api/orders", nil), httptest.NewRecorder()
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			handler.ServeHTTP(a, r)
			return a.Code
		}
		if got := ask("OPTIONS", "Origin", "https://shop.example", "Access-Control-Request-Method", "PUT"); got != c.preflight {
			t.Errorf("%s: a preflight gets %d, want %d", name, got, c.preflight)
		}
		if got := ask("OPTIONS"); got != c.options {
			t.Errorf("%s: OPTIONS that is no preflight gets %d, want %d", name, got, c.options)
		}
		if got := ask("GET", "Origin", "https://shop.example", "Access-Control-Request-Method", "PUT"); got != none {
			t.Errorf("%s: GET gets %d, want %d", name, got, none)
		}
	}
}

// A preflight that meets two rules passes only the one that lets it.
func TestPreflightCountsForOtherRules(t *testing.T) {
	for i, first := range []string{"/p/{id}/i", "/p/"} {
		second := []string{"/p/", "/p/{id}/i"}[i]
		handler := limitedBy(t, fmt.Sprintf("http:\n"+
			"  - match: %s\n    preflights: exempt\n    limits: [{policy: a, key: ip}]\n"+
			"  - match: %s\n    limits: [{policy: a, key: ip}]\n", first, second))
		var codes []int
		for range 2 {
			r, a := httptest.NewRequest(http.MethodOptions, "/p/a%2Fb/i", nil), httptest.NewRecorder()
			r.Header.Set("Origin", "https://shop.example")
			r.Header.Set("Access-Control-Request-Method", "PUT")
			handler.ServeHTTP(a, r)
			codes = append(codes, a.Code)
		}
		if codes[0] != http.StatusOK || codes[1] != http.StatusTooManyRequests {
			t.Errorf("%s exempts and %s limits 1/h: %v", first, second, codes)
		}
	}
}

// A rule without limits takes its requests out of a wider one.
func TestRuleWithoutLimits(t *testing.T) {
	handler := limitedBy(t, "http:\n  - match: /\n    limits: [{policy: a, key: ip}]\n  - match: GET /healthz\n    limits: []\n")
	for i := range 5 {
		for path, want := range map[string]int{"/healthz": 200, "/other": 429} {
			if i == 0 {
				want = 200
			}
			if got := serve(handler, path); got != want {
				t.Errorf("request %d of %s gets %d, want %d", i, path, got, want)
			}
		}
	}
}

// limitedBy returns a handler that answers 200 behind rules, which may use the policy a of one request an hour.
func limitedBy(t *testing.T, rules string) http.Handler {
	t.Helper()
	f, err := policyfile.Parse("p.yaml", []byte("version: 1\npolicies: [{name: a, limit: 1/h}]\n"+rules))
	if err != nil {
		t.Fatal(err)
	}
	g := groups.New(t, remote.NewMemory(), nil, f.Policies...)
	limit, err := f.Middleware(g, nil)
	if err != nil {
		t.Fatal(err)
	}
	return limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}
