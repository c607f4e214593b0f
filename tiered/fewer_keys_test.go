package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A process that keeps fewer keys than one request needs still decides within Budget, with one caller or many. A caller
// whose bucket is evicted during the look-up does not begin its wait again.
func TestFewerKeysThanOneRequestNeeds(t *testing.T) {
	for _, trip := range []time.Duration{ms, 8 * ms, 15 * ms} {
		for _, crowd := range []int{1, 2, 16} {
			for _, keys := range []int{1, 4, 12} {
				t.Run(fmt.Sprint(trip, "/", crowd, " at a time/", keys, " keys"), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						var ps []tiered.Policy
						for i := range 4 {
							ps = append(ps, tiered.Policy{
								Name: fmt.Sprint("p", i), Limit: tiered.PerSecond(1 << 30),
								FailMode: tiered.FailClosed, Lease: tiered.Lease{Size: tiered.NoLease},
							})
						}
						l := several(t, newDistant(trip), &tiered.Options{MaxKeys: keys}, ps...)
						time.Sleep(second)
						var all sync.WaitGroup
						var mu sync.Mutex
						var longest time.Duration
						granted := 0
						for w := range crowd {
							all.Go(func() {
								for i := range 20 {
									start := time.Now()
									d := tiered.All(l[0].For(fmt.Sprint(w)), l[1].For("t"), l[2].For("i"),
										l[3].For(fmt.Sprint("x", w, i))).Allow(context.Background())
									mu.Lock()
									longest = max(longest, time.Since(start))
									if d.Allowed {
										granted++
									}
									mu.Unlock()
									time.Sleep(time.Duration(w) * ms)
								}
							})
						}
						all.Wait()
						if longest > tiered.DefaultBudget {
							t.Errorf("the longest of %d decisions took %v, Budget is %v", 20*crowd, longest,
								tiered.DefaultBudget)
						}
						if crowd == 1 && granted != 20 {
							t.Errorf("%d of 20 were granted", granted)
						}
						t.Logf("%d of %d were granted, the longest took %v", granted, 20*crowd, longest)
						for _, one := range l[:1] {
							books(t, one.Group())
						}
					})
				})
			}
		}
	}
}

// More rarely used keys are under way than the process keeps, while Redis or the process is slow for a moment. Redis
// decides all of them.
func TestMoreKeysUnderWayThanAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		start := time.Now()
		store.tail = func() float64 {
			if time.Since(start)%(500*ms) < 20*ms {
				return 10 // two pipelines of 64 calls in that time are 12 800/s
			}
			return 1
		}
		l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerMinute(10), FailMode: tiered.FailClosed},
			&tiered.Options{MaxKeys: 100, MaxInFlight: 1000})
		time.Sleep(second)
		var all sync.WaitGroup
		var refused atomic.Int64
		for i := range 24_000 { // 12 000/s
			all.Go(func() {
				if d := l.Allow(context.Background(), fmt.Sprint(i)); !d.Allowed {
					refused.Add(1)
				}
			})
			time.Sleep(second / 12_000)
		}
		all.Wait()
		if n := refused.Load(); n > 0 {
			t.Errorf("%d of 24000 keys went to the fail mode", n)
		}
		books(t, l.Group())
	})
}
