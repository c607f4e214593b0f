package tiered

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A key with more shards than MaxKeys is reset like any other. An evicted bucket is kept until its reset is answered.
func TestResetOfMoreShardsThanAreKept(t *testing.T) {
	const shards = 64
	for _, a := range []Algorithm{TokenBucket, FixedWindow, SlidingWindow, SlidingLog} {
		for _, keys := range []int{1, 3, shards - 1} {
			t.Run(fmt.Sprint(a, "/", keys, " keys"), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiter(t, newDistant(8*ms),
						Policy{Name: "api", Limit: PerHour(50 * shards), Algorithm: a, Shards: shards},
						&Options{MaxKeys: keys})
					for range 2 {
						for range shards {
							l.AllowN(t.Context(), "k", 50)
						}
						if n := l.Peek(t.Context(), "k").Remaining; n > 49*shards {
							t.Errorf("%d tokens are left: nothing was used", n)
						}
						if err := l.Reset(t.Context(), "k"); err != nil {
							t.Error(err)
						}
						if n := l.Peek(t.Context(), "k").Remaining; n < 50*shards {
							t.Errorf("%d tokens are left after a reset", n)
						}
						time.Sleep(second)
					}
				})
			})
		}
	}
}
