package bench_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
)

// Both services give the same answers, but for the rows that say why not.
func TestBehaviorOfBoth(t *testing.T) {
	if os.Getenv("TIERED_TEST_RLS_BENCH") == "" {
		t.Skip("builds envoyproxy/ratelimit, which takes a minute: make rls-bench, or TIERED_TEST_RLS_BENCH=1")
	}
	ours, theirs := build(t)
	for _, p := range []program{ours, theirs} {
		t.Run(p.name, func(t *testing.T) {
			behavior.Test(t, p.name == theirs.name, func(t *testing.T, env string, files []string) pb.RateLimitServiceClient {
				with := p
				with.env = append(slices.Clip(p.env), strings.Fields(env)...)
				return with.start(t, 1, files...).replicas[0].client
			})
		})
	}
}
