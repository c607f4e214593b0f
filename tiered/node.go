package tiered

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

const (
	// senders is how many pipelines may be under way to a node at once. One would make a call that comes a moment too
	// late wait for a whole round trip of others'; with two the second leaves at once, and under load both fill up. Each
	// more makes the pipelines shorter and the decisions dearer: with 1, 2, 3, 4 senders and 16 callers of cold keys on
	// loopback a decision took 32, 33, 36, 38 µs of CPU, of the process and of Redis together.
	senders = 2

	// maxBatch is the most calls in one pipeline: at 12 µs each some 0.8 ms of Redis' time, so that a batch holds nobody up
	// for long. In pipelines of 1, 4, 8, 16, 32, 128 calls each call costs Redis 29, 17, 14, 12.3, 11.8, 11.1 µs of CPU.
	maxBatch = 64
)

// job is something that wants to send one call to a node. Its methods are called on a sender's goroutine.
type job interface {
	// begin says what to send as of now for a bucket of that name, or false when nothing is to be sent any more.
	begin(n *node, now time.Duration, bucket string) (lua.Call, bool)
	// end tells what came of the call, once; the error is errGivenUp when it took longer than Timeout.
	end(n *node, now time.Duration, call *lua.Call, sent time.Duration, r remote.Result)
	// drop says that nothing can be sent, in place of begin: the breaker is open.
	drop(n *node, now time.Duration)
}

// due is a job in the queue, and the name of its bucket.
type due struct {
	job    job
	bucket string
}

// addressed is a job with the node that it is for.
type addressed struct {
	due
	node *node
}

// errGivenUp is the result of a call that took longer than Timeout. It may yet be executed.
var errGivenUp = errors.New("tiered: no answer within Timeout")

// node is one Redis server as this process sees it: the queue of what is due, the senders that empty it, its clock.
// What is due when a sender is free goes out in one pipeline; nothing waits for company.
type node struct {
	group *Group
	id    remote.Node
	clock dispatch.Clock
	fleet *dispatch.Fleet
	guard *failover.Guard // asked when a batch is about to leave, and nowhere else

	mu       sync.Mutex
	queue    []due
	head     int           // of queue: what lies before it was taken
	sending  int           // senders at work, but for those whose batch was given up
	resting  int           // senders that wait for work
	work     chan struct{} // to one of them
	inFlight int           // calls sent, and neither returned nor given up
	closedAt time.Duration // when the breaker closed again
	troubled bool          // counted in Group.troubled
	gone     chan struct{} // closed when the Group has forgotten the node

	refuses atomic.Pointer[error] // the node's last word on a write, if that was that it does not serve

	calls, lateReplies, staleReplies, lateCalls, stateLosses atomic.Int64

	health
}

// push puts jobs into the queue, and sees to it that a sender takes them: those of one push together, if there is room. After
// the end of the Group it does nothing.
func (n *node) push(jobs ...due) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.group.ended.Load() {
		return
	}
	n.queue = append(n.queue, jobs...)
	n.start()
}

// push sends jobs on their way, those for one node in one step, so that they are one pipeline. It forgets where they went.
func push(all []addressed) {
	for i := range all {
		n := all[i].node
		if n == nil {
			continue
		}
		var room [few]due
		jobs := room[:0]
		for j := i; j < len(all); j++ {
			if all[j].node == n {
				jobs = append(jobs, all[j].due)
				all[j].node = nil
			}
		}
		n.push(jobs...)
	}
}

// stop empties the queue, for good once the Group has ended.
func (n *node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue, n.head = nil, 0
}

// start puts a sender to work if there is something to send and room to send it: one that rests, or a new one.
func (n *node) start() {
	if n.head < len(n.queue) && n.sending < senders && n.room() > 0 {
		n.sending++
		select {
		case n.work <- struct{}{}:
		default:
			n.group.tasks.Go(n.send)
		}
	}
}

// rest waits for work, and reports whether there is any: a goroutine that has grown its stack once is cheaper than a new
// one for each call of a key that is asked for now and then. There are no more of them than can be at work.
func (n *node) rest() bool {
	n.mu.Lock()
	n.sending--
	n.start() // for what came in since
	crowded := n.resting == senders
	if !crowded {
		n.resting++
	}
	n.mu.Unlock()
	if crowded {
		return false
	}
	defer func() {
		n.mu.Lock()
		n.resting--
		n.mu.Unlock()
	}()
	select {
	case <-n.work:
		return true
	case <-n.gone:
		return false
	case <-n.group.done:
		return false
	}
}

// replace frees the place of a sender whose work was given up.
func (n *node) replace() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sending--
	n.start()
}

const (
	// gentle is the most calls under way to a node that has just come back, for as long as gentleTime: what piled up
	// during the outage must not be the next one.
	gentle     = 16
	gentleTime = time.Second
)

// room is how many more calls may be under way.
func (n *node) room() int {
	most := n.group.options.MaxInFlight
	if n.closedAt > 0 && n.group.now() < n.closedAt+gentleTime {
		most = min(most, gentle)
	}
	return most - n.inFlight
}

// take takes up to most jobs off the queue, as far as there is room for their calls, into a list that is used again.
func (n *node) take(most int, into []due) []due {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := max(min(len(n.queue)-n.head, most, n.room()), 0)
	jobs := append(into[:0], n.queue[n.head:n.head+count]...)
	clear(n.queue[n.head : n.head+count])
	n.head += count
	if n.head == len(n.queue) {
		n.queue, n.head = n.queue[:0], 0
	} else if n.head > len(n.queue)/2 { // so each job is moved once, on average
		n.queue, n.head = append(n.queue[:0], n.queue[n.head:]...), 0
	}
	n.inFlight += count
	return jobs
}

// trouble counts a node whose breaker is not closed, but none that is forgotten.
func (n *node) trouble(is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.gone:
		is = false
	default:
	}
	if is != n.troubled {
		n.troubled = is
		n.group.troubled.Add(map[bool]int64{true: 1, false: -1}[is])
	}
}

// forget lets go of a node that left its Cluster, unless something is under way to it. Its breaker would stay open for
// ever: nothing is sent to it any more.
func (g *Group) forget(n *node) {
	g.nodeMu.Lock()
	n.mu.Lock()
	forgotten := g.nodes[n.id] == n && n.head == len(n.queue) && n.inFlight == 0
	if forgotten {
		delete(g.nodes, n.id)
		close(n.gone)
	}
	n.mu.Unlock()
	g.nodeMu.Unlock()
	if forgotten {
		n.trouble(false)
	}
}

// note counts what a reply tells about the node.
func (n *node) note(r lua.Reply) {
	if r.Code == lua.Stale {
		n.staleReplies.Add(1)
	}
	if r.Flags&lua.SteppedBack != 0 {
		n.believed.Add(1)
	}
}
