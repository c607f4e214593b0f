package bench

import (
	"os"
	"testing"

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
			behavior.Test(t, p.start(t, 1, behavior.Config).replicas[0].client, p.name == theirs.name)
		})
	}
}
