package dispatch

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

const (
	// MaxSenders is how many pipelines may be under way to a node at once. With one, a call that
	// comes a moment too late waits for a whole round trip of other calls. With two, it leaves at
	// once, and under load both pipelines fill up. More senders would make the pipelines shorter,
	// and a decision take up to 15 % more processor time (docs/internals/performance.md).
	MaxSenders = 2

	// maxBatch is the most calls in one pipeline. At 12 µs each they take 0.8 ms of Redis' time, so
	// other clients do not wait long. A longer pipeline would hardly make a call cheaper: 11 µs
	// with 128.
	maxBatch = 64
)

// Job has one call to send to a node. Its methods are called on a sender's goroutine and must not
// block. After a Push, either Compose or Abandon is called once. If Compose reports true, Finish is
// called once. When the Dispatcher ends, none of them may be called.
type Job interface {
	// Compose returns the call to send at now, for the bucket of that name. It reports false if
	// there is nothing to send any more.
	Compose(n *Node, now time.Duration, bucket string) (lua.Call, bool)

	// Finish takes the result of the call. The error is ErrNoAnswer if the call took longer than
	// Timeout.
	Finish(n *Node, now time.Duration, call *lua.Call, sent time.Duration, r remote.Result)

	// Abandon reports that nothing can be sent, because the breaker is open.
	Abandon(n *Node, now time.Duration)
}

// Pending is a pending call: a Job in a queue, and the name of its bucket.
type Pending struct {
	Job    Job
	Bucket string
}

// Routed is a pending call and its node.
type Routed struct {
	Pending
	Node *Node
}

// ErrNoAnswer is the result of a call that took longer than Timeout. The node may execute it later.
var ErrNoAnswer = errors.New("tiered: no answer within Timeout")

// Node is one Redis server as this process sees it: a queue of pending calls, the senders that
// empty it, and the node's clock. A free sender sends all pending calls in one pipeline. No call
// waits for others to fill it.
type Node struct {
	dispatcher *Dispatcher
	id         remote.Node // "" for the node whose pending calls have no known node yet: see locate
	number     int         // nodes that were made before it
	observer   NodeObserver
	clock      clock
	fleets     *fleets
	guard      *failover.Guard // begins an attempt when a batch is about to leave, and in locate and present
	pace       *pace           // how long the node takes to answer

	mu        sync.Mutex
	queue     []Pending     // queue[head:] is pending; what lies before was taken
	head      int           // ≤ len(queue), and 0 if the queue is empty
	sending   int           // senders at work, without those whose batch was given up; ≤ mostSenders
	idling    int           // senders that wait for work; ≤ MaxSenders
	wake      chan struct{} // wakes one of them; no capacity
	inFlight  int           // calls taken off the queue and neither returned nor given up; ≤ MaxInFlight
	closedAt  time.Duration // when the breaker last closed; 0 for never
	forgotten chan struct{} // closed when the Dispatcher has forgotten the node

	presence chan struct{} // capacity 1: full while a report of this process' presence is under way
	left     bool          // this process has left, so nothing reports its presence any more; guarded by presence
	absentAt int64         // calls when the node was last found to have no slots; -1 for never; guarded by presence

	carried sync.Pool // of *Carried

	writeError atomic.Pointer[error] // the error of the node's last answer to a write; nil if that was written

	Figures
	health
}

// ID returns the node's name.
func (n *Node) ID() remote.Node { return n.id }

// Number is that of no other node that the Dispatcher has had.
func (n *Node) Number() int { return n.number }

// Observer returns the node's observer.
func (n *Node) Observer() NodeObserver { return n.observer }

// State returns the state of the breaker.
func (n *Node) State() failover.State { return n.guard.State() }

// ProbeDue reports whether the breaker is open and lets a probe through at now.
func (n *Node) ProbeDue(now time.Duration) bool { return n.guard.ReadyAt(now) }

// ServerTime reports what the node's clock shows at t, in µs. It reports false if no reply has come
// yet.
func (n *Node) ServerTime(t time.Duration) (int64, bool) { return n.clock.at(t) }

// ServerTimes reports between which times the node's clock is at the process' time t, in µs since
// 1970. It reports false if that is not known.
func (n *Node) ServerTimes(t time.Duration) (from, to int64, ok bool) { return n.clock.bounds(t) }

// RoundTrip reports the 99th percentile of the round trips, or what one typically takes if that is
// more: few answers are enough to know that, and a lease that does not last until the next answer
// is none.
func (n *Node) RoundTrip() time.Duration { return max(n.clock.roundTrip(), n.TypicalTrip()) }

// Processes reports how many processes share the limits of a policy at the node. The policy is
// given by its place in what this process announces. While nobody has been counted at the node, the
// node with the most processes counts: the keys of a node that died may have come here, or their
// node may be unknown.
func (n *Node) Processes(policy int) int64 {
	if !n.hasCounted() {
		return n.dispatcher.MostProcesses(policy)
	}
	return n.fleets.size(policy)
}

// hasCounted reports whether a refresh of presence has been answered.
func (n *Node) hasCounted() bool { return n.fleets.all.max.Load() > 0 }

// AllProcesses reports how many processes are present at the node, whatever their policies are.
func (n *Node) AllProcesses() int64 { return n.fleets.all.size() }

// Push queues pending calls for the node, and puts a sender to work. Calls of one Push leave in one
// pipeline if there is room. After Stop it does nothing.
func (n *Node) Push(jobs ...Pending) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dispatcher.ended.Load() {
		return
	}
	n.queue = append(n.queue, jobs...)
	n.start()
}

// Push queues each pending call at its node, those for one node in one step. It sets each Node in
// all to nil.
func Push(all []Routed) {
	for i := range all {
		n := all[i].Node
		if n == nil {
			continue
		}
		var room [4]Pending // as many as most requests have
		jobs := room[:0]
		for j := i; j < len(all); j++ {
			if all[j].Node == n {
				jobs = append(jobs, all[j].Pending)
				all[j].Node = nil
			}
		}
		n.Push(jobs...)
	}
}

// Queued reports how many calls are pending.
func (n *Node) Queued() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.queue) - n.head
}

// stop empties the queue. It stays empty if the Dispatcher has ended.
func (n *Node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue, n.head = nil, 0
}

// start puts a sender to work if a call is pending and there is room for it: an idle sender, or a
// new one. n.mu is held.
func (n *Node) start() {
	if n.head < len(n.queue) && n.sending < n.maxSenders() && n.room() > 0 {
		n.sending++
		select {
		case n.wake <- struct{}{}:
		default:
			n.dispatcher.tasks.Go(n.send)
		}
	}
}

// idle waits for work and reports whether there is any. Reusing a goroutine that has grown its
// stack is cheaper than a new one for each call. At most MaxSenders goroutines wait.
func (n *Node) idle() bool {
	n.mu.Lock()
	n.sending--
	n.start() // for calls that came meanwhile
	crowded := n.idling >= MaxSenders
	if !crowded {
		n.idling++
	}
	n.mu.Unlock()
	if crowded {
		return false
	}
	defer func() {
		n.mu.Lock()
		n.idling--
		n.mu.Unlock()
	}()
	select {
	case <-n.wake:
		return true
	case <-n.forgotten:
		return false
	case <-n.dispatcher.ctx.Done():
		return false
	}
}

// freeSender frees the place of a sender whose batch was given up.
func (n *Node) freeSender() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sending--
	n.start()
}

const (
	// rampUp is the largest number of calls under way in the first rampUpTime after the breaker
	// closed. Calls that piled up during an outage must not cause the next one.
	rampUp     = 16
	rampUpTime = time.Second
)

// room reports how many more calls may be under way. n.mu is held.
func (n *Node) room() int {
	limit := n.dispatcher.options.MaxInFlight
	if n.closedAt > 0 && n.dispatcher.now() < n.closedAt+rampUpTime {
		limit = min(limit, rampUp)
	}
	return limit - n.inFlight
}

// take removes up to limit pending calls from the queue, but no more than there is room for, and
// returns them in into.
func (n *Node) take(limit int, into []Pending) []Pending {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := max(min(len(n.queue)-n.head, limit, n.room()), 0)
	jobs := append(into[:0], n.queue[n.head:n.head+count]...)
	clear(n.queue[n.head : n.head+count])
	n.head += count
	if n.head == len(n.queue) {
		n.queue, n.head = n.queue[:0], 0
	} else if n.head > len(n.queue)/2 { // so that each job is moved once, on average
		n.queue, n.head = append(n.queue[:0], n.queue[n.head:]...), 0
	}
	n.inFlight += count
	return jobs
}

// countUnhealthy counts a node whose breaker is not closed, or with -1 no longer. A forgotten node
// is not counted. n.mu is held.
func (n *Node) countUnhealthy(by int64) {
	select {
	case <-n.forgotten:
	default:
		n.dispatcher.unhealthy.Add(by)
	}
}

// forget removes a node that left its Cluster, unless calls are pending or under way. Nothing is
// sent to it any more, so its breaker would stay as it is, and what it counted last would count for
// ever. It stays if no other node has counted the processes: nothing else says how many share the
// limits.
func (d *Dispatcher) forget(n *Node) {
	d.mu.Lock()
	n.mu.Lock()
	counted := false
	for _, other := range d.nodes {
		counted = counted || other != n && other.hasCounted()
	}
	idle := d.nodes[n.id] == n && n.head == len(n.queue) && n.inFlight == 0 && counted
	if idle {
		delete(d.nodes, n.id)
		d.list()
		if n.open {
			n.countUnhealthy(-1)
		}
		close(n.forgotten)
	}
	n.mu.Unlock()
	d.mu.Unlock()
}

// countReply counts what a reply shows about the node.
func (n *Node) countReply(r lua.Reply) {
	if r.Code == lua.Stale {
		n.StaleReplies.Add(1)
	}
	if r.Flags&lua.SteppedBack != 0 {
		n.StepsBack.Add(1)
	}
}
