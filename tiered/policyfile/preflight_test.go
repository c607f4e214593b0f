package policyfile_test

import (
	"fmt"
	"net/http"
	"testing"
)

// onePerHour begins a file: its rules may use the policy a.
const onePerHour = "version: 1\npolicies: [{name: a, limit: 1/h}]\nhttp:\n"

// preflight are the fields of one.
var preflight = []string{"Origin", "https://shop.example", "Access-Control-Request-Method", "PUT"}

// Browsers send preflights without a credential. A rule lets them pass by a word, or another rule
// limits nothing. Neither lets anything else pass.
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
		"a rule for all OPTIONS": {"  - match: /api/\n" + limits + "  - match: OPTIONS /api/\n    limits: []\n", 200, 200},
	} {
		h := behind(t, onePerHour+c.http)
		if got := ask(h, "OPTIONS", "/api/orders", preflight...); got != c.preflight {
			t.Errorf("%s: a preflight gets %d, want %d", name, got, c.preflight)
		}
		if got := ask(h, "OPTIONS", "/api/orders"); got != c.options {
			t.Errorf("%s: OPTIONS that is no preflight gets %d, want %d", name, got, c.options)
		}
		if got := ask(h, "GET", "/api/orders", preflight...); got != none {
			t.Errorf("%s: GET gets %d, want %d", name, got, none)
		}
	}
}

// A preflight that meets two rules passes only the one that lets it.
func TestPreflightCountsForOtherRules(t *testing.T) {
	for i, first := range []string{"/p/{id}/i", "/p/"} {
		second := []string{"/p/", "/p/{id}/i"}[i]
		h := behind(t, fmt.Sprintf(onePerHour+"  - match: %s\n    preflights: exempt\n    limits: [{policy: a, key: ip}]\n"+
			"  - match: %s\n    limits: [{policy: a, key: ip}]\n", first, second))
		codes := []int{ask(h, http.MethodOptions, "/p/a%2Fb/i", preflight...), ask(h, http.MethodOptions, "/p/a%2Fb/i", preflight...)}
		if codes[0] != http.StatusOK || codes[1] != http.StatusTooManyRequests {
			t.Errorf("%s exempts and %s limits 1/h: %v", first, second, codes)
		}
	}
}

// A rule without limits takes its requests out of a wider one.
func TestRuleWithoutLimits(t *testing.T) {
	h := behind(t, onePerHour+"  - match: /\n    limits: [{policy: a, key: ip}]\n  - match: GET /healthz\n    limits: []\n")
	for i := range 5 {
		for path, want := range map[string]int{"/healthz": 200, "/other": 429} {
			if i == 0 {
				want = 200
			}
			if got := ask(h, http.MethodGet, path); got != want {
				t.Errorf("request %d of %s gets %d, want %d", i, path, got, want)
			}
		}
	}
}
