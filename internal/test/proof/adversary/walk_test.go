package adversary_test

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
)

func TestEverySmallSchedule(t *testing.T) {
	for _, s := range adversary.SmallScopes() {
		if testing.Short() {
			s.Depth -= 2 // a step is six to ten times as many states
		}
		t.Run(s.Name, func(t *testing.T) {
			begin := time.Now()
			synctest.Test(t, func(t *testing.T) { walk(t, s) })
			t.Logf("%v", time.Since(begin).Round(time.Millisecond))
		})
	}
}

// walk runs in a bubble, where the clock stands still, for Memory counts a bucket's time to live by
// its own clock.
func walk(t *testing.T, s adversary.SmallScope) {
	k := adversary.Walk{Scope: s.Scope, Depth: s.Depth, Workers: runtime.GOMAXPROCS(0)}
	if !k.Run() {
		t.Fatalf("after %d states: %s\n%s", k.States, k.Broken.Fault,
			adversary.Describe(k.Broken.Schedule, inMemory()))
	}
	t.Logf("%d states, %d steps deep", k.States, s.Depth)
}
