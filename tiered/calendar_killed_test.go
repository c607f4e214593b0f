package tiered_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A process that is killed burns what it held: of a window of the calendar at most 0.5 %, and never
// more than it used in the second before. The figures are on the page.
func TestWhatAKilledProcessBurns(t *testing.T) {
	t.Parallel()
	var most struct{ ofWindow, ofSecond float64 }
	trials, seeds := 0, 10
	if testing.Short() {
		seeds = 1
	}
	for _, limit := range []tiered.Limit{tiered.PerMonth(2000), tiered.PerMonth(30_000), tiered.PerDay(1_000_000).In("Asia/Tokyo"), tiered.PerDay(30_000).In("UTC")} {
		for _, rate := range []int{5, 50, 500} { // a second, of the process that is killed
			for _, processes := range []int{1, 4} {
				for trial := range 2 * seeds {
					burst := []int{1, 20}[trial%2] // so many come together
					bubble(t, fmt.Sprint(limit, rate, processes, trial), func(t *testing.T) {
						random := rand.New(rand.NewPCG(uint64(rate), uint64(processes*100+trial)))
						memory, admitted := remote.NewMemory(), int64(0)
						var lines []*distant
						var all []*tiered.Limiter
						for range processes + 1 { // the last one gets the rest
							lines = append(lines, &distant{Memory: memory, trip: ms})
							all = append(all, limiter(t, lines[len(lines)-1], tiered.Policy{
								Limit: limit, Algorithm: tiered.FixedWindow, FailMode: tiered.FailClosed,
							}, nil))
						}
						killed := time.Now().Add(2*second + time.Duration(random.Int64N(int64(4*second))))
						used := 0 // in the second before
						for time.Now().Before(killed) {
							for i := range processes {
								for range burst {
									if all[i].Allow(ctx, "k").Allowed {
										admitted++
										if i == 0 && time.Until(killed) <= second {
											used++
										}
									}
								}
							}
							time.Sleep(time.Duration(random.ExpFloat64() * float64(second) * float64(burst) / float64(rate)))
						}
						lines[0].loseRequests.Store(true)
						time.Sleep(20 * second)
						for n := int64(1 << 12); n > 0; n /= 2 {
							for all[processes].AllowN(ctx, "k", n).Allowed {
								admitted += n
							}
						}
						burnt := float64(limit.Tokens - admitted)
						if burnt < 0 || burnt > 0.005*float64(limit.Tokens) || burnt > float64(max(used, 5)) {
							t.Errorf("%v were burnt of %d, %d had been used in a second", burnt, limit.Tokens, used)
						}
						trials++
						most.ofWindow = max(most.ofWindow, burnt/float64(limit.Tokens))
						if used >= 10 {
							most.ofSecond = max(most.ofSecond, burnt/float64(used))
						}
					})
				}
			}
		}
	}
	t.Logf("%d trials: at most %.2f %% of a window, and %.2f of what a second had used", trials, 100*most.ofWindow, most.ofSecond)
}
