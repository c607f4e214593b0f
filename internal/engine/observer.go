package engine

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Hooks are told what happens. They must return at once, and must not call the engine. Accepted and Failed are nil if nobody
// listens.
type Hooks struct {
	Decision   func(*Told)                                                        // of a Limiter in ModeTraced
	Accepted   func(*Bucket, *dispatch.Node, *lua.Call, lua.Reply, time.Duration) // a call, after a round trip
	Failed     func(b *Bucket, n *dispatch.Node, c *lua.Call, err error, class string)
	Waited     func(WaitEnd)
	StateLost  func(*Bucket, *dispatch.Node) // Redis has lost a bucket
	Standstill func(by time.Duration)        // all leases were dropped
}

// WaitEnd is the end of a wait.
type WaitEnd struct {
	Limiter *Limiter
	Key     string
	Cost    int64
	Time    time.Duration // how long it lasted
	Err     error         // nil if the tokens were taken
	Waiting int64         // calls that still wait, for any key of the policy
}

// Node is what is known of a Redis node besides what the dispatcher knows. It is the dispatcher's observer of the node.
type Node interface {
	dispatch.NodeObserver
	Overran()                       // a caller got no answer within its Budget
	Settled(tokens int64)           // tokens that were admitted without Redis were reported
	Doubted() (until time.Duration) // until then the node may have come back empty after an outage
	KeptData()                      // it has not
}

func nodeOf(n *dispatch.Node) Node { return n.Observer().(Node) }
