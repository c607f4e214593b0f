package tiered_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// CheckCost refuses the costs that no request of a full key is admitted with, and only them. It says which limit it is.
func TestCostsThatAreNeverAdmitted(t *testing.T) {
	also := []tiered.Limit{tiered.PerHour(9), tiered.PerDay(7)}
	per := tiered.PerMinute(12)
	for name, c := range map[string]struct {
		policy tiered.Policy
		most   int64 // 0 if it refuses nothing
		why    string
	}{
		"tokens":         {tiered.Policy{Limit: per}, 12, "Policy.Limit.Tokens is 12"},
		"burst":          {tiered.Policy{Limit: per.WithBurst(5)}, 5, "Policy.Limit.Burst is 5"},
		"larger burst":   {tiered.Policy{Limit: per.WithBurst(15)}, 15, "Policy.Limit.Burst is 15"},
		"also":           {tiered.Policy{Limit: per, Also: also}, 7, "Policy.Also[1].Tokens is 7"},
		"fixed window":   {tiered.Policy{Limit: per, Algorithm: tiered.FixedWindow}, 12, "Policy.Limit.Tokens"},
		"sliding window": {tiered.Policy{Limit: per, Algorithm: tiered.SlidingWindow}, 12, "Policy.Limit.Tokens"},
		"windows":        {tiered.Policy{Limit: per, Algorithm: tiered.SlidingWindow, Also: also}, 7, "Policy.Also[1].Tokens"},
		"sliding log":    {tiered.Policy{Limit: per, Algorithm: tiered.SlidingLog}, 12, "Policy.Limit.Tokens"},
		"standing": {
			tiered.Policy{Limit: tiered.PerMinute(1200), Standing: tiered.StandingOn},
			1050,
			"Policy.Limit.Tokens is 1200 and Policy.Standing is on",
		},
		"unlimited": {tiered.Policy{Limit: tiered.Unlimited()}, 0, ""},
		"blocked":   {tiered.Policy{Limit: tiered.Blocked()}, 0, ""},
		"limits of keys": {
			tiered.Policy{Limit: per, PerKey: func(string) tiered.Limit { return tiered.PerMinute(1 << 20) }}, 0, "",
		},
	} {
		bubble(t, name, func(t *testing.T) {
			c.policy.Name = "api"
			l := limiter(t, remote.NewMemory(), c.policy, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
			time.Sleep(time.Second)
			if c.most == 0 {
				ok(t, c.policy.CheckCost(1<<20))
			} else {
				over := l.AllowN(ctx, "over", c.most+1)
				if d := l.AllowN(ctx, "most", c.most); !d.Allowed || over.Reason != tiered.ExceedsBurst {
					t.Errorf("%d: %v, %d: %v", c.most, d.Reason, c.most+1, over.Reason)
				}
				err := c.policy.CheckCost(c.most + 1)
				if c.policy.CheckCost(c.most) != nil || err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("%d: %v, %d: %v", c.most, c.policy.CheckCost(c.most), c.most+1, err)
				}
			}
			for _, n := range []int64{-1, 0, 1<<40 + 1} {
				if err := c.policy.CheckCost(n); err == nil || !strings.Contains(err.Error(), "must be 1 to 2^40") {
					t.Errorf("%d: %v", n, err)
				}
			}
		})
	}
}
