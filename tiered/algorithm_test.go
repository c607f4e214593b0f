package tiered_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// windows are all that counts otherwise than one token bucket.
var windows = []tiered.Policy{
	{Name: "fixed", Algorithm: tiered.FixedWindow, Limit: tiered.PerMinute(10)},
	{Name: "log", Algorithm: tiered.SlidingLog, Limit: tiered.PerMinute(10)},
	{Name: "sliding", Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10)},
	{Name: "direct", Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10), Lease: neverLeased},
	{Name: "buckets", Limit: tiered.PerMinute(10), Also: []tiered.Limit{tiered.PerHour(100)}},
}

// admitted asks until a request is refused, and reports how many were not.
func admitted(t *testing.T, l *tiered.Limiter, key string) (n int) {
	t.Helper()
	for {
		d := l.Allow(ctx, key)
		if !d.Allowed {
			want(t, d, tiered.Limited)
			return n
		}
		n++
	}
}

// PerKey may give a window another limit, Blocked or Unlimited. Another period is invalid if bucket names contain it.
func TestPerKeyOfWindows(t *testing.T) {
	for _, p := range windows {
		t.Run(p.Name, func(t *testing.T) {
			p.PerKey = func(key string) tiered.Limit {
				return map[string]tiered.Limit{
					"few": tiered.PerMinute(3), "any": tiered.Unlimited(), "none": tiered.Blocked(), "hour": tiered.PerHour(4), "bad": {Tokens: -1},
				}[key]
			}
			store := remote.NewMemory()
			if len(p.Also) > 0 {
				if _, err := tiered.New(store, p, nil); err == nil ||
					!strings.Contains(err.Error(), "Policy.Also is 1 limits: must be empty with PerKey") {
					t.Fatalf("%v", err)
				}
				return
			}
			synctest.Test(t, func(t *testing.T) {
				l := several(t, newDistant(ms), nil, p)[0]
				time.Sleep(time.Second)
				hour := map[tiered.Algorithm]int{
					tiered.FixedWindow: 10, tiered.SlidingLog: 10,
					tiered.SlidingWindow: 4,
				}[p.Algorithm]
				for key, n := range map[string]int{"few": 3, "other": 10, "bad": 10, "hour": hour} {
					if got := admitted(t, l, key); got != n {
						t.Errorf("%s: %d, want %d", key, got, n)
					}
				}
				for range 20 {
					want(t, l.Allow(ctx, "any"), tiered.Granted)
					want(t, l.Allow(ctx, "none"), tiered.ExceedsBurst)
				}
				faults := int64(1)
				if hour == 10 {
					faults = 2
				}
				if n := l.Group().Stats().Policies[p.Name].Faults.PerKey; n != faults {
					t.Errorf("%d faults of PerKey, want %d", n, faults)
				}
			})
		})
	}
}
