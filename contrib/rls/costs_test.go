package rls_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// asks asks with so many hits, and reports whether the answer is OK.
func asks(t *testing.T, s *rls.Service, hits int64) bool {
	t.Helper()
	r := fatal.Get(s.ShouldRateLimit(t.Context(), behavior.Request(fmt.Sprintf("llm | user=ann +%d", hits))))(t)
	return r.GetOverallCode() == pb.RateLimitResponse_OK
}

// Costs that are known after the answer hold the limit with each algorithm, and no setting is
// needed for it. What is used beyond the limit is at most what was under way when the limit was
// reached.
func TestCostsAfterTheAnswerHoldTheLimit(t *testing.T) {
	const limit, refill = 300, 6 // of a minute
	for _, c := range []struct {
		name        string
		first, cost int64 // hits of a request, and of the end of its stream
		streams     int   // at one time
		most        int64
	}{
		{"Envoy: 0 hits, then the cost", 0, 77, 1, limit + 77 + refill},
		{"Envoy Gateway: a hit, then the cost", 1, 77, 1, limit + 77 + refill},
		{"a cost above the limit", 0, 5000, 1, 5000 + refill},
		{"several streams", 0, 77, 10, limit + 10*77 + refill},
		{"a hit for each failed login", 0, 1, 50, limit + 50 + refill},
	} {
		for _, algorithm := range []string{"fixed window", "token bucket", "sliding window", "sliding log"} {
			t.Run(c.name+", "+algorithm, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newService(t, remote.NewMemory(), "domain: llm\ndescriptors:\n- key: user\n"+
						"  rate_limit: {unit: hour, requests_per_unit: 300}\n  tiered: {algorithm: "+algorithm+"}\n", nil)
					time.Sleep(time.Second)
					used := int64(0)
					for range 100 { // a minute
						admitted := 0
						for range c.streams {
							if asks(t, s, c.first) {
								admitted++
								used += c.first
							}
						}
						for range admitted {
							asks(t, s, c.cost)
							used += c.cost
						}
						time.Sleep(600 * time.Millisecond)
					}
					if used > c.most || used < limit-c.cost {
						t.Errorf("%d of %d were used, want at most %d", used, limit, c.most)
					}
				})
			})
		}
	}
}

// A client that asks with single hits for more than its rate gets its rate: a hit that is refused
// was not used.
func TestSingleHitsThatAreRefusedCountNothing(t *testing.T) {
	for _, algorithm := range []string{"token bucket", "sliding window", "sliding log"} {
		synctest.Test(t, func(t *testing.T) {
			s := newService(t, remote.NewMemory(), "domain: llm\ndescriptors:\n- key: user\n"+
				"  rate_limit: {unit: second, requests_per_unit: 10}\n  tiered: {algorithm: "+algorithm+"}\n", nil)
			time.Sleep(time.Second)
			admitted := 0
			for range 300 { // in 20 s
				if asks(t, s, 1) {
					admitted++
				}
				time.Sleep(time.Second / 15)
			}
			if admitted < 190 || admitted > 211 {
				t.Errorf("%s: %d of 300 hits in 20 s, want 200", algorithm, admitted)
			}
		})
	}
}
