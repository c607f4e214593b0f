package bubble_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/bubble"
)

// Time is virtual, in bubbles side by side too, and what ends the body's goroutine ends the
// caller's.
func TestRun(t *testing.T) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			began := time.Now()
			bubble.Run(func() {
				began := time.Now()
				time.Sleep(time.Hour)
				if d := time.Since(began); d != time.Hour {
					t.Errorf("an hour lasted %v", d)
				}
			})
			if d := time.Since(began); d > time.Minute {
				t.Errorf("%v of real time", d)
			}
		})
	}
	all.Wait()
	all.Go(func() {
		bubble.Run(func() { t.SkipNow() })
		t.Error("the caller goes on")
	})
	all.Wait()
}
