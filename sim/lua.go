package sim

import "github.com/tiered-limiter/tiered-limiter/sim/scenario"

func newLua(l listener, seed uint64, n scenario.Net) world { return nil }
