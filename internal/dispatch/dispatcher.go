package dispatch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Options are what a Dispatcher is made with. All fields but Yield must be set.
type Options struct {
	Store remote.Store
	Base  time.Time // all times are durations since then, by the monotonic clock

	// Timeout is the time after which a batch is given up, and the breaker counts a failure.
	// ClientTimeout is the time for which the client waits for a reply, also of a batch that was
	// given up; ≥ Timeout. Both are longer for a node that takes long to answer: see pace.
	Timeout, ClientTimeout time.Duration

	// Carry says that callers may make calls themselves: the Store keeps the timeout of Run, and
	// runs no code of others meanwhile that may need what a caller holds.
	Carry bool

	MaxInFlight int // calls under way to one node
	Processes   int // the smallest size of the fleet; 0 if it is not known

	Uniform func() float64 // a random number in [0, 1)
	Lease   func() string  // this process' lease id, which its presence is recorded under

	// CheckClock is called before a batch is composed and after its replies have arrived, on a
	// sender's goroutine, so it must not block. The machine may have stood still before either.
	CheckClock func(now time.Duration)

	// Observe returns the observer of a node that is used for the first time. It must not call the
	// Node.
	Observe func(n *Node) NodeObserver

	// Announced returns what this process announces with its presence, and the version of that: see
	// [Dispatcher.Forget].
	Announced func() (a remote.Announcement, keep time.Duration, version int64)

	// Poll returns the next poll of the table of fractions, or reports false if there is nothing to
	// ask. It is sent with the presence at the table's node. Polled takes its result.
	Poll   func(now time.Duration) (lua.Poll, bool)
	Polled func(now time.Duration, p lua.Poll, r remote.PollResult)

	// Yield returns when everything else that happens at this instant of virtual time has happened,
	// for each node, by its number, at an instant of its own. It is nil in a service.
	Yield func(node int)
}

// NodeObserver is told what happens to one node, on a sender's goroutine. It must not block.
type NodeObserver interface {
	// Changed is called when the breaker changes. It is called in the order of the changes.
	Changed(c Change)

	// Stepped is called when the node's clock was set by that much.
	Stepped(by time.Duration)

	// Refused is called for each call that the node refuses while it may serve others: see
	// [failover.Refused].
	Refused(err error)

	// Present is called after each refresh of this process' presence, with its error. If probe is
	// true, the refresh was a probe: the breaker was not closed when it left, and knows the error
	// too.
	Present(err error, probe bool)

	// Counted is called after each answered refresh, with what it announced, its answer, and the
	// size of each announced policy's fleet before it.
	Counted(announced remote.Announcement, c remote.Census, before []int64)

	// Forgotten says that another policy has a place now, so that what was counted of it means
	// nothing.
	Forgotten(place int)
}

// Change is a change of a node's breaker.
type Change struct {
	From, To failover.State
	Class    failover.Class // of Err, if To is Open
	Err      error
	After    time.Duration // if To is Closed: how long the breaker was not closed
}

// Dispatcher sends calls to the nodes of a store. All methods may be called concurrently.
type Dispatcher struct {
	options Options
	ctx     context.Context // of the goroutines; it ends with the Dispatcher
	ended   atomic.Bool     // nothing is queued any more
	tasks   sync.WaitGroup  // refreshPresence and the senders

	mu        sync.RWMutex
	nodes     map[remote.Node]*Node   // guarded by mu
	listed    atomic.Pointer[[]*Node] // those in the map, for readers without the lock; see list
	made      int                     // nodes that were ever made; guarded by mu
	refresh   chan struct{}           // capacity 1: a node or a policy was added
	allNodes  atomic.Bool             // presence goes to all nodes of the store, not only to those in use
	unhealthy atomic.Int64            // nodes in the map whose breaker is not closed
	version   atomic.Int64            // of the announcement whose places are those of now
}

// New returns a Dispatcher that works until ctx ends.
func New(ctx context.Context, o Options) *Dispatcher {
	d := &Dispatcher{
		options: o, ctx: ctx, nodes: make(map[remote.Node]*Node), refresh: make(chan struct{}, 1),
	}
	d.list()
	if id := o.Store.Node(o.Store.Key("", "")); id != "" {
		d.node(id) // the store has one node. The first policy makes the first refresh, which announces it
	}
	return d
}

// Start begins to refresh this process' presence.
func (d *Dispatcher) Start(ctx context.Context) {
	d.tasks.Go(func() { d.refreshPresence(ctx) })
}

// Refresh refreshes this process' presence soon, because a policy was added. It does not block. It
// also teaches the clock of the store's only node before the first request.
func (d *Dispatcher) Refresh() {
	select {
	case d.refresh <- struct{}{}:
	default:
	}
}

// UseAllNodes makes this process refresh its presence at all nodes of the store, also at those that
// it does not use.
func (d *Dispatcher) UseAllNodes() { d.allNodes.Store(true) }

// Stop empties all queues for good. Calls under way continue.
func (d *Dispatcher) Stop() {
	d.ended.Store(true)
	for _, n := range d.Nodes() {
		n.stop()
	}
}

// Leave ends this process' presence at all nodes for good. It blocks until they have answered: at
// most for two Timeouts, and for two ClientTimeouts more if a refresh is under way. Executed
// afterwards, it would undo the leaving.
func (d *Dispatcher) Leave(ctx context.Context) {
	var all sync.WaitGroup
	for _, n := range d.Nodes() {
		all.Go(func() { _ = n.reportPresence(ctx, 0, 0) }) // the presence ends by itself
	}
	all.Wait()
}

// Wait blocks until all goroutines have ended.
func (d *Dispatcher) Wait() { d.tasks.Wait() }

// Node returns the node of that name. It makes one at the first use.
func (d *Dispatcher) Node(id remote.Node) *Node {
	d.mu.RLock()
	n := d.nodes[id]
	d.mu.RUnlock()
	if n != nil {
		return n
	}
	n, added := d.node(id)
	if added {
		d.Refresh()
	}
	return n
}

// node is Node without a refresh. It reports whether it made the node.
func (d *Dispatcher) node(id remote.Node) (n *Node, added bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n = d.nodes[id]; n != nil {
		return n, false
	}
	n = &Node{
		dispatcher: d, id: id, number: d.made, fleets: newFleets(int64(d.options.Processes)), presence: make(chan struct{}, 1), absentAt: -1,
		wake: make(chan struct{}), forgotten: make(chan struct{}),
	}
	n.observer = d.options.Observe(n)
	n.pace = newPace(d.options.Timeout, d.options.ClientTimeout)
	n.guard = failover.New(failover.Options{
		Timeout: d.options.Timeout, Uniform: d.options.Uniform, Base: d.options.Base, OnChange: n.changed,
	})
	d.nodes[id] = n
	d.made++
	d.list()
	return n, true
}

// list makes the list that Nodes returns, after the map has changed. The caller holds the lock.
func (d *Dispatcher) list() {
	all := slices.Collect(maps.Values(d.nodes))
	d.listed.Store(&all)
}

// Nodes returns the nodes in use, in no order. The list is never changed: it takes no lock and
// allocates nothing, because each decision of fail-local asks here how many processes there are.
func (d *Dispatcher) Nodes() []*Node {
	return *d.listed.Load()
}

// MostProcesses reports how many processes share the limits of a policy at the node with the most.
func (d *Dispatcher) MostProcesses(policy int) int64 {
	most := max(int64(d.options.Processes), 1)
	for _, n := range d.Nodes() {
		if n.hasCounted() {
			most = max(most, n.fleets.size(policy))
		}
	}
	return most
}

// Unhealthy reports how many nodes have a breaker that is not closed.
func (d *Dispatcher) Unhealthy() int64 { return d.unhealthy.Load() }

// Resume tells all nodes that this process' clock stood still until now.
func (d *Dispatcher) Resume(now time.Duration) {
	for _, n := range d.Nodes() {
		n.clock.resume(now)
	}
}

// now is the time since the base.
func (d *Dispatcher) now() time.Duration { return time.Since(d.options.Base) }

// yield lets everything else that happens at this instant happen first, in a simulation.
func (n *Node) yield() {
	if yield := n.dispatcher.options.Yield; yield != nil {
		yield(n.number)
	}
}
