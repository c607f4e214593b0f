package tiered_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Twenty processes share a limit of one key, and more is asked for than there is. The first process is asked ten times
// as often as the last one. None of them takes what the others need: each admits about the same part of what it is
// asked for, and none refuses all of it for long.
func TestNoProcessOfAFleetStarves(t *testing.T) {
	const processes, demand, end = 20, 1.5, 15 * second
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(roundTrip)
		start := time.Now()
		var sum float64
		for i := range processes {
			sum += math.Pow(float64(i+1), -0.77)
		}
		var all sync.WaitGroup
		for i := range processes {
			l := limiter(t, store, tiered.Policy{Limit: thousand}, &tiered.Options{Random: dice(1, uint64(1000+i))})
			rate := demand * 1000 * math.Pow(float64(i+1), -0.77) / sum // requests per second
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				asked, admitted := 0, 0
				last, longest := warmUp, time.Duration(0) // the last admission, and the longest time without one
				for {
					time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(second)))
					at := time.Since(start)
					if at > end {
						break
					}
					d := l.Allow(context.Background(), "hot")
					if at < warmUp {
						continue
					}
					asked++
					if longest = max(longest, at-last); d.Allowed {
						admitted++
						last = at
					}
				}
				part := float64(admitted) / float64(asked)
				t.Logf("process %d: %d asked, %.2f of them admitted, at most %v without one", i, asked, part, longest)
				if part < 0.4 || part > 0.9 || longest > second {
					t.Errorf("process %d: %.2f of its requests admitted, want about %.2f; %v without one", i, part,
						1/demand,
						longest)
				}
			})
		}
		all.Wait()
	})
}
