package tiered_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A user stays within several limits during ten minutes without Redis. Afterwards nothing is refused: all buckets
// of the user were full meanwhile, and the refill that they lost pays for what was admitted.
func TestALongOutageIsForgivenWhereAllBucketsWereFull(t *testing.T) {
	const processes, down, up, end = 4, time.Minute, 11 * time.Minute, 13 * time.Minute
	for _, demand := range []float64{0.3, 0.8} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			wire := newDistant(ms)
			wire.down = func() bool { at := time.Since(start); return at >= down && at < up }
			each := time.Duration(float64(time.Minute) / 100 / demand * processes)
			alone, refused := make([]int, processes), make([]int, processes)
			var loads sync.WaitGroup
			for i := range processes {
				l := limiter(t, wire, tiered.Policy{
					Name: "api", Limit: tiered.PerMinute(100),
					Also: []tiered.Limit{tiered.PerSecond(10)},
				},
					&tiered.Options{Processes: processes})
				loads.Go(func() {
					time.Sleep(each / processes * time.Duration(i))
					for ; time.Since(start) < end; time.Sleep(each) {
						switch d := l.Allow(context.Background(), "user"); {
						case !d.Allowed:
							refused[i]++
						case d.Reason == tiered.Fallback:
							alone[i]++
						}
					}
				})
			}
			loads.Wait()
			if n := slices.Min(alone); n < 10 {
				t.Fatalf("at %v of the limit a process decided %d times alone: this tests nothing", demand, n)
			}
			if n := slices.Max(refused); n > 0 {
				t.Errorf("at %v of the limit %v were refused", demand, refused)
			}
		})
	}
}
