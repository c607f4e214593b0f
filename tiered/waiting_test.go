package tiered_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestWaitingPage computes the table of docs/waiting.md: fifty who come at once wait for ten per second.
func TestWaitingPage(t *testing.T) {
	page := must(os.ReadFile("../docs/waiting.md"))
	ten := tiered.PerSecond(10)
	for _, c := range []struct {
		name   string
		policy tiered.Policy
	}{
		{"`TokenBucket`, burst 1", tiered.Policy{Limit: ten.WithBurst(1)}},
		{"`TokenBucket`, burst 10", tiered.Policy{Limit: ten}},
		{"`FixedWindow`", tiered.Policy{Limit: ten, Algorithm: tiered.FixedWindow, Calendar: true}},
		{"`SlidingWindow`", tiered.Policy{Limit: ten, Algorithm: tiered.SlidingWindow}},
		{"`SlidingLog`", tiered.Policy{Limit: ten, Algorithm: tiered.SlidingLog}},
	} {
		row := ""
		synctest.Test(t, func(t *testing.T) {
			c.policy.Name, c.policy.Lease.Size = "p", tiered.NoLease
			l := limiter(t, remote.NewMemory(), c.policy, nil)
			begun := time.Now() // a bubble begins at a whole second
			var mu sync.Mutex
			var all sync.WaitGroup
			at := map[time.Duration]int{}
			for range 50 {
				all.Go(func() {
					ok(t, l.Wait(context.Background(), "k"))
					mu.Lock()
					defer mu.Unlock()
					at[time.Since(begun).Round(10*ms)]++
				})
			}
			all.Wait()
			first, together, last := at[0], 0, time.Duration(0)
			for d, n := range at {
				if last = max(last, d); d > 0 {
					together = max(together, n)
				}
			}
			row = fmt.Sprintf("| %s | %d | %d | %.1f s |", c.name, first, together, last.Seconds())
		})
		if !strings.Contains(string(page), "\n"+row+"\n") {
			t.Errorf("docs/waiting.md has no row\n%s", row)
		}
	}
}
