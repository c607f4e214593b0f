// Package bubble runs functions in virtual time.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// Run calls body in a bubble of its own and returns when body and all goroutines that it started
// have ended. Time in the bubble begins at midnight UTC 2000-01-01 and stands still while a
// goroutine runs. Call it outside of a bubble.
//
// Package testing/synctest is the only way to such time, and it takes a test. This is the only
// place where the simulator imports package testing: the zero T will do, because it is never asked
// for its name, its log or its verdict. If a release of Go asks more of it, every test of the
// simulator shows that at once.
func Run(body func()) {
	done := false
	synctest.Test(new(testing.T), func(*testing.T) {
		// In a goroutine of its own a panic ends the program, with its trace. Here package testing
		// would recover it.
		var own sync.WaitGroup
		own.Go(func() {
			body()
			done = true
		})
		own.Wait()
	})
	if !done { // a test that called FailNow
		runtime.Goexit()
	}
}
