package main_test

import (
	"net/http"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/envoytest"
)

// ofMetadata are the descriptors of a rule with fromMetadata of an Envoy Gateway: the limit that the
// metadata of a request has holds for its cost before the answer and for that after it.
const ofMetadata = `
envoy.filters.http.ratelimit:
  "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
  rate_limits:
    - &before
      actions:
        - generic_key: {descriptor_key: route, descriptor_value: route}
        - request_headers: {header_name: x-user, descriptor_key: rule-0-match-0}
      limit: {dynamic_metadata: {metadata_key: {key: limits, path: [{key: of}]}}}
    - <<: *before
      apply_on_stream_done: true
      hits_addend: {format: "%DYNAMIC_METADATA(cost:tokens)%"}
`

// A real Envoy takes limits from metadata, as an Envoy Gateway makes it do (fromMetadata). A
// request without one, or with one that Envoy does not understand, goes by the rule. Both count
// together, and so do costs that are known after the answer.
func TestEnvoyLimitFromMetadata(t *testing.T) {
	envoytest.Program(t)
	p := start(t, `domain: shop
descriptors:
  - key: route
    value: route
    descriptors:
      - {key: rule-0-match-0, rate_limit: {unit: month, requests_per_unit: 5}}
`, patient)
	c := envoytest.HandedOut(t, envoytest.Upstream(t), p.address)
	c.Filter["timeout"] = "20s"
	c.Host["rate_limits"] = []any{}
	c.CountCosts(t)
	for _, route := range c.Host["routes"].([]any) {
		route.(envoytest.Tree)["typed_per_filter_config"] = envoytest.Parsed(t, ofMetadata)
	}
	limitFromHeader(t, c)
	e := envoytest.Start(t, c)
	per := func(n int, unit string) string {
		return headerOf(t, map[string]any{"requests_per_unit": n, "unit": unit})
	}
	for _, r := range []struct {
		name, user, limit, cost string
		times, want             int // admitted
	}{
		{"the rule's", "ann", "", "0", 8, 5},
		{"a larger one", "bob", per(8, "MONTH"), "0", 12, 8},
		{"none, after that", "bob", "", "0", 3, 0},
		{"a smaller one", "cid", per(3, "MONTH"), "0", 6, 3},
		{"none, after that", "cid", "", "0", 6, 2},
		{"of another unit", "dan", per(2, "YEAR"), "0", 5, 2},
		{"no unit", "eve", headerOf(t, map[string]any{"requests_per_unit": 9}), "0", 8, 5},
		{"none at all", "fay", per(0, "MONTH"), "0", 3, 0},
		{"costs after the answer", "gus", per(100, "MONTH"), "30", 6, 4}, // the fourth is admitted with 93
	} {
		admitted := 0
		for range r.times {
			headers := []string{"x-user", r.user, "x-costs", r.cost}
			if r.limit != "" {
				headers = append(headers, "x-limit", r.limit)
			}
			switch answer := askCost(t, e, headers...); answer.StatusCode {
			case http.StatusOK:
				admitted++
			case http.StatusTooManyRequests:
			default:
				t.Fatalf("%s: %s", r.name, answer.Status)
			}
		}
		if admitted != r.want {
			t.Errorf("%s: %d of %d are admitted, want %d", r.name, admitted, r.times, r.want)
		}
	}
	if is := e.Counts(t); is.Failed+is.Allowed > 0 {
		t.Errorf("%+v: want no call to fail", is)
	}
}
