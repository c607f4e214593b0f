package sim

import (
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
)

// hooked says that this program calls Child.
var hooked atomic.Bool

// Child must be the first call of main, or of TestMain, in a program that uses the engine [Live], whose processes are this
// program, started again. In one of them Child does that process' work and exits. In any other it returns at once.
func Child() {
	hooked.Store(true)
	harness.Child()
}
