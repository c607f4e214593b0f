package tiered_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Each decision is counted once, whichever path decided it. A decision at once is counted in a separate step.
func TestEveryDecisionIsCounted(t *testing.T) {
	for _, test := range []struct {
		mode tiered.FailMode
		down bool
		want tiered.Reason // of the last decision
		of   func(tiered.PolicyStats) int64
	}{
		{tiered.FailLocal, false, tiered.Limited, func(p tiered.PolicyStats) int64 { return p.Tokens.Limited }},
		{tiered.FailLocal, true, tiered.FallbackSpent, func(p tiered.PolicyStats) int64 { return p.Tokens.FallbackSpent }},
		{tiered.FailOpen, true, tiered.Open, func(p tiered.PolicyStats) int64 { return p.Tokens.Open }},
		{tiered.FailClosed, true, tiered.Unavailable, func(p tiered.PolicyStats) int64 { return p.Tokens.Unavailable }},
	} {
		t.Run(test.want.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := remote.NewMemory()
				l := limiter(t, store, tiered.Policy{
					Name: "p", Limit: tiered.Limit{Tokens: 10, Per: time.Hour},
					FailMode: test.mode,
				},
					nil)
				if test.down {
					store.Fail(errors.New("down"))
				}
				counts := make(map[tiered.Reason]int64)
				var last tiered.Reason
				for range 30_000 { // three seconds: long before that the breaker is open
					last = l.AllowN(t.Context(), "k", 2).Reason
					counts[last] += 2
					time.Sleep(100 * time.Microsecond)
				}
				if test.down && l.Group().Stats().Nodes["memory"].Outages.Count == 0 {
					t.Error("the breaker never opened: this shows little")
				}
				if got := test.of(l.Group().Stats().Policies["p"]); got != counts[last] || last != test.want {
					t.Errorf("counted %d tokens, want %d of %v; decided: %v", got, counts[last], test.want, counts)
				}
			})
		})
	}
}
