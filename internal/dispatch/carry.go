package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// A request that finds its node idle carries its own call: it makes the call on its own goroutine,
// in place of a sender. To hand a call to a sender and its answer back costs more than a third of
// the processor time of a call, and a fifth of its time (docs/internals/performance.md).
//
// A caller that carries a call cannot leave before the answer. So the client waits for as long as
// the caller does, and a call that takes longer loses its connection. The node has to be one that
// answers long before: then that happens when it begins to stand still, once for each sender's
// place, and the senders have the next calls.

// ErrLeft is the result of a call whose caller carried it and left before Timeout. The node may
// execute it later. It says nothing of the node.
var ErrLeft = errors.New("tiered: no answer within Budget")

// swift is how often a slow answer of a node must fit into the time that a caller has.
const swift = 4

// Carried is a call on its caller's goroutine. It has a sender's place until it was made.
type Carried struct{ batch }

// Carry makes a call at once, which its caller would otherwise have to push. It blocks until the
// answer comes, for d at most. It reports false, and has done nothing, if a sender should make the
// call: the node is not known to be well and swift, others wait for it, all senders are at work, or
// the store may keep a caller for longer. Otherwise [Carried.Deliver] must follow, also if the
// caller has given up.
func (n *Node) Carry(p Pending, d time.Duration) (*Carried, bool) {
	d = min(d, n.Timeout())
	if !n.dispatcher.options.Carry || !n.isSwift(d) || !n.takePlace() {
		return nil, false
	}
	c, ok := n.carried.Get().(*Carried)
	if !ok {
		c = &Carried{batch{node: n}}
	}
	c.make(p, d)
	n.freeSender() // a sender has what came meanwhile
	return c, true
}

// isSwift reports whether a node is known, is well, and answers in time for a caller that has d.
func (n *Node) isSwift(d time.Duration) bool {
	slow := n.pace.slow.Load() // 0 of the node without a name
	return slow > 0 && slow <= int64(d/swift) && n.IsWell()
}

// IsWell reports whether a node has answered the last call.
func (n *Node) IsWell() bool {
	return n.guard.State() == failover.Closed && n.pace.unheard.Load() == 0
}

// takePlace takes the place of a sender, for one call that need not wait behind others.
func (n *Node) takePlace() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dispatcher.ended.Load() || len(n.queue) > 0 || n.sending >= n.maxSenders() || n.room() <= 0 {
		return false
	}
	n.sending++
	n.inFlight++
	n.dispatcher.tasks.Add(1) // Close waits for it
	return true
}

// make makes the call, unless the breaker has opened meanwhile.
func (c *Carried) make(p Pending, d time.Duration) {
	n, o := c.node, &c.node.dispatcher.options
	c.sent = n.dispatcher.now()
	o.CheckClock(c.sent)
	attempt, ok := n.guard.BeginAgain(c.attempt, nil)
	if !ok {
		n.abandon([]Pending{p}, c.sent)
		return
	}
	c.attempt = attempt
	defer attempt.Abort() // a panic or Goexit from here on is a failure too
	c.room[0] = p
	if c.compose(c.room[:1]); len(c.calls) == 0 {
		attempt.End(context.Canceled)
		return
	}
	err := c.exchange(d)
	if now := n.dispatcher.now(); err != nil && now >= c.sent+d-d/swift {
		n.pace.noAnswer(now)
		if now < c.sent+n.Timeout() { // nothing was learned yet
			c.results[0].Err, err = ErrLeft, context.Canceled
		}
	}
	if !attempt.End(err) && err == nil { // the process stood still meanwhile
		n.guard.Answered()
	}
	n.callsDone(len(c.calls))
}

// Deliver gives the job its result.
func (c *Carried) Deliver() {
	if len(c.jobs) > 0 {
		c.finish(c.results)
	}
	c.reset()
	c.node.carried.Put(c)
	c.node.dispatcher.tasks.Done()
}
