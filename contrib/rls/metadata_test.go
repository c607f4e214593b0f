package rls_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The metadata of an answer, which Envoy writes into its access log, tells for each descriptor what
// was decided, and by which rule.
func TestMetadataTellsTheDecision(t *testing.T) {
	s := newService(t, remote.NewMemory(), behavior.Config, &rls.Options{Metadata: true})
	for _, c := range []struct{ request, want string }{
		{"shop | user=a | tenant=x path=/y | other=z", `[{"code":"OK","limit":3,"remaining":2,"rule":"user"},` +
			`{"code":"OK","limit":2,"remaining":1,"rule":"tenant.path"},{"code":"OK"}]`},
		{"shop | user=a +9 | user=vip", `[{"code":"OVER_LIMIT","limit":3,"remaining":0,"rule":"user"},` +
			`{"code":"OK","limit":5,"remaining":4,"rule":"user_vip"}]`},
		{"shop | tried=a", `[{"code":"OK","limit":1,"remaining":0,"rule":"tried"}]`},
		{"shop | tried=a", `[{"code":"OK","limit":1,"remaining":0,"rule":"tried","shadow":true}]`},
		{"shop | user=b limit=7/day | admin=a", `[{"code":"OK","limit":7,"remaining":6},{"code":"OK","rule":"admin"}]`},
		{"shop | user=b limit=7/unknown", `[{"code":"OVER_LIMIT"}]`},
	} {
		answer := fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(c.request)))(t)
		var all []any
		for _, d := range answer.GetDynamicMetadata().AsMap()["descriptors"].([]any) {
			all = append(all, d.(map[string]any)["decision"])
		}
		if got, err := json.Marshal(all); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.request, got, err, c.want)
		}
	}
	// And what was asked, with the metadata of the rules that it is within: the first one counts.
	s = newService(t, remote.NewMemory(), `domain: d
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 0}, metadata: {lost: true}}
  - {key: e, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {n: 1.5, deep: {x: [1, null, {y: "1"}]}, only: ~}}
  - {key: f, rate_limit: {unit: year, requests_per_unit: 9}, metadata: {n: 2, deep: {x: 3, z: yes}}}
  - {key: g, rate_limit: {unlimited: true}, metadata: {lost: true}}
`, &rls.Options{Metadata: true})
	const request = "d +2 | a=x | b=y c=z +3 | b=y limit=5/year | e=x | f=x | g=x"
	for _, left := range []string{"7", "5"} { // the second answer is as the first
		answer := fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(request)))(t)
		got := answer.GetDynamicMetadata().AsMap()
		all := got["descriptors"].([]any)
		limited := all[2].(map[string]any)
		limit := limited["limit"].(string) // a text of package proto: its spaces are chance
		limited["limit"], limited["decision"] = "LIMIT", nil
		want := `{"descriptors":[{"decision":{"code":"OVER_LIMIT","limit":0,"remaining":0,"rule":"a"},"entries":["a=x"]},` +
			`{"decision":{"code":"OK"},"entries":["b=y","c=z"],"hitsAddend":3},` +
			`{"decision":null,"entries":["b=y"],"limit":"LIMIT"},` +
			`{"decision":{"code":"OK","limit":9,"remaining":` + left + `,"rule":"e"},"entries":["e=x"]},` +
			`{"decision":{"code":"OK","limit":9,"remaining":` + left + `,"rule":"f"},"entries":["f=x"]},` +
			`{"decision":{"code":"OK","rule":"g"},"entries":["g=x"]}],` +
			`"domain":"d","hitsAddend":2,"metadata":{"deep":{"x":[1,null,{"y":"1"}],"z":"yes"},"n":1.5,"only":null}}`
		if text := string(fatal.Get(json.Marshal(got))(t)); text != want || !strings.Contains(limit, "requests_per_unit:5") {
			t.Errorf("%s, of %s, want\n%s", text, limit, want)
		}
	}
}
