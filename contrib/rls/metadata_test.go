package rls_test

import (
	"encoding/json"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/must"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The metadata of an answer, which Envoy writes into its access log, tells for each descriptor what was decided, and by
// which rule.
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
		answer := must.Get(s.ShouldRateLimit(t.Context(), behavior.Request(c.request)))(t)
		var all []any
		for _, d := range answer.GetDynamicMetadata().AsMap()["descriptors"].([]any) {
			all = append(all, d.(map[string]any)["decision"])
		}
		if got, err := json.Marshal(all); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.request, got, err, c.want)
		}
	}
}
