package proof

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// First plays count random things, some at once, and returns the number of the first that is broken, or count. Each
// worker has a test of its own, for its bubbles. After a broken one only those before it are played, unless all are.
func First(t *testing.T, count int, all bool, broken func(t *testing.T, n int) bool) int {
	var next, first atomic.Int64
	first.Store(int64(count))
	t.Run("workers", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < int64(count) && (all || n < first.Load()); n = next.Add(1) - 1 {
					if broken(t, int(n)) {
						for f := first.Load(); n < f && !first.CompareAndSwap(f, n); f = first.Load() {
						}
					}
				}
			})
		}
	})
	return int(first.Load())
}
