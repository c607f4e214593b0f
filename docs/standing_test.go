package docs_test

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestStanding compares the numbers of the page with the code.
func TestStanding(t *testing.T) {
	policy := tiered.Policy{Name: "per-user", Limit: tiered.PerSecond(100).WithBurst(200), Standing: 1. / 2}
	fatal.If(t, policy.Validate())
	share, rest, err := standing.Split(standing.Rate{Burst: policy.Limit.Burst, Tokens: policy.Limit.Tokens, Per: policy.Limit.Per}, 4)
	if err != nil {
		t.Fatal(err)
	}
	if size := (standing.Limits{share}).Size(); size != 200/2 || rest.Burst != 200/2 {
		t.Errorf("%d and %d tokens of 200", size, rest.Burst)
	}
	if perSecond := float64(rest.Tokens) / rest.Per.Seconds(); perSecond != 100/2.0 {
		t.Errorf("%v tokens per second in Redis, of 100", perSecond)
	}
}
