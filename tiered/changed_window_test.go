package tiered_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Of a sliding window whose length or Precision changes, each token counts as long as in the new window, but for a block of
// the old one. It makes no difference whether the key is refused or admitted meanwhile.
func TestChangedWindowKeepsItsCount(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		name  string
		from  tiered.Limit
		to    tiered.Limit
		spent int64
		later time.Duration // from the spending to the change
		most  time.Duration // from the change until to.Tokens/2 are there again
	}{
		{"shorter", tiered.PerHour(100), tiered.PerSecond(10), 100, 0, 3 * time.Second},
		{"shorter, and not full", tiered.PerHour(100), tiered.PerSecond(10), 9, 0, 3 * time.Second},
		{"shorter, of what was spent long ago", tiered.PerHour(100), tiered.PerMinute(50), 100, 10 * time.Minute, 0},
		{"a day, and a minute", tiered.PerDay(1000), tiered.PerMinute(100), 1000, time.Hour, 0},
		{"as long by other blocks, and full", tiered.PerHour(100), precise(tiered.PerHour(100), 2*time.Minute), 100, 30 * time.Minute, 36 * time.Minute},
		{"as long by other blocks", tiered.PerHour(100), precise(tiered.PerHour(100), 2*time.Minute), 99, 30 * time.Minute, 36 * time.Minute},
		{"longer", tiered.PerMinute(100), tiered.PerHour(100), 100, 30 * time.Second, 65 * time.Minute},
		{"longer, of what is over", tiered.PerMinute(100), tiered.PerHour(100), 100, 2 * time.Minute, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, remote.NewMemory(),
					tiered.Policy{Name: "api", Limit: c.from, Algorithm: tiered.SlidingWindow, Lease: tiered.Lease{Size: tiered.NoLease}}, nil)
				time.Sleep(time.Second)
				for range c.spent {
					if !l.Allow(t.Context(), "user").Allowed {
						t.Fatal("refused")
					}
				}
				time.Sleep(c.later)
				if err := l.SetLimit(c.to); err != nil {
					t.Fatal(err)
				}
				change := time.Now()
				l.Allow(t.Context(), "user") // admitted or not, it is the first by the new window
				for refused := 0; ; refused++ {
					d := l.AllowN(t.Context(), "user", c.to.Tokens/2)
					after := time.Since(change)
					if d.Allowed && after <= c.most+time.Millisecond {
						return
					}
					if d.Allowed || after > 2*day {
						t.Fatalf("%d of %d again %v after the change, refused %d times", c.to.Tokens/2, c.to.Tokens, after, refused)
					}
					time.Sleep(d.RetryAfter)
				}
			})
		})
	}
}

func precise(l tiered.Limit, block time.Duration) tiered.Limit {
	l.Precision = block
	return l
}
