package tiered

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Each decision is counted once, whichever path decided it. A decision at once is counted in a separate step.
func TestEveryDecisionIsCounted(t *testing.T) {
	for _, test := range []struct {
		mode FailMode
		down bool
		want Reason // of the last decision
		of   func(PolicyStats) int64
	}{
		{FailLocal, false, Limited, func(p PolicyStats) int64 { return p.Limited }},
		{FailLocal, true, FallbackSpent, func(p PolicyStats) int64 { return p.FallbackSpent }},
		{FailOpen, true, Open, func(p PolicyStats) int64 { return p.Open }},
		{FailClosed, true, Unavailable, func(p PolicyStats) int64 { return p.Unavailable }},
	} {
		t.Run(test.want.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := remote.NewMemory()
				l, err := New(store, Policy{Name: "p", Limit: Limit{Tokens: 10, Per: time.Hour}, FailMode: test.mode},
					nil)
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close(t.Context())
				if test.down {
					store.Fail(errors.New("down"))
				}
				counts := make(map[Reason]int64)
				var last Reason
				for range 30_000 { // three seconds: long before that the breaker is open
					last = l.AllowN(t.Context(), "k", 2).Reason
					counts[last] += 2
					time.Sleep(100 * time.Microsecond)
				}
				if test.down && l.group.Stats().Nodes["memory"].Outages == 0 {
					t.Error("the breaker never opened: this shows little")
				}
				if got := test.of(l.group.Stats().Policies["p"]); got != counts[last] || last != test.want {
					t.Errorf("counted %d tokens, want %d of %v; decided: %v", got, counts[last], test.want, counts)
				}
			})
		})
	}
}
