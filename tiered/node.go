package tiered

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

const (
	// senders is how many pipelines may be under way to a node at once. One would make a call that comes a moment too
	// late wait for a whole round trip of others'; with two the second leaves at once, and under load both fill up.
	senders = 2

	// maxBatch is the most calls in one pipeline: some 100 µs of Redis' time, so that a batch holds nobody up for long.
	maxBatch = 64
)

// job is something that wants to send one call to a node. Its methods are called on a sender's goroutine.
type job interface {
	// begin says what to send as of now, or false when nothing is to be sent any more.
	begin(n *node, now time.Duration) (remote.Call, bool)
	// end tells what came of the call, once; the error is errGivenUp when it took longer than Timeout.
	end(n *node, now time.Duration, call *remote.Call, sent time.Duration, r remote.Result)
	// drop says that nothing can be sent, in place of begin: the breaker is open.
	drop(n *node, now time.Duration)
}

// errGivenUp is the result of a call that took longer than Timeout. It may yet be executed.
var errGivenUp = errors.New("tiered: no answer within Timeout")

// node is one Redis server as this process sees it: the queue of what is due, the senders that empty it, its clock.
// What is due when a sender is free goes out in one pipeline; nothing waits for company.
type node struct {
	group *Group
	id    remote.Node
	clock clock
	fleet fleet
	guard *failover.Guard // asked when a batch is about to leave, and nowhere else

	mu       sync.Mutex
	queue    []job
	head     int           // of queue: what lies before it was taken
	sending  int           // senders at work, but for those whose batch was given up
	inFlight int           // calls sent and not returned, given up or not
	closedAt time.Duration // when the breaker closed again

	calls, failures, lateReplies,
	staleReplies, lateCalls, stateLosses atomic.Int64
}

// push puts a job into the queue, and sees to it that a sender takes it. After the end of the Group it does nothing.
func (n *node) push(j job) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.group.ended.Load() {
		return
	}
	n.queue = append(n.queue, j)
	n.start()
}

// stop empties the queue, for good once the Group has ended.
func (n *node) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue, n.head = nil, 0
}

// start starts a sender if there is something to send and room to send it.
func (n *node) start() {
	if n.head < len(n.queue) && n.sending < senders && n.room() > 0 {
		n.sending++
		n.group.tasks.Go(n.send)
	}
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

// take takes up to most jobs off the queue, as far as there is room for their calls.
func (n *node) take(most int) []job {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := max(min(len(n.queue)-n.head, most, n.room()), 0)
	jobs := append([]job(nil), n.queue[n.head:n.head+count]...)
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

// send empties the queue, batch by batch. It ends when nothing is due, or when a batch took so long that it was given up:
// then another sender has its place.
func (n *node) send() {
	for {
		b := batch{node: n}
		switch b.run() {
		case sent:
		case idle:
			n.mu.Lock()
			n.sending--
			n.start() // for what came in since
			n.mu.Unlock()
			return
		case givenUp:
			return
		}
	}
}

// result is what became of a batch.
type result int

const (
	sent result = iota
	idle
	givenUp
)

// batch is one pipeline under way.
type batch struct {
	node  *node
	jobs  []job
	calls []remote.Call
	sent  time.Duration

	mu sync.Mutex // jobs, while giveUp may read them
}

// run sends what is due in one pipeline and hands out the results.
func (b *batch) run() result {
	n, g := b.node, b.node.group
	due := n.take(1)
	if len(due) == 0 {
		return idle
	}
	b.sent = g.now()
	g.watchClock(b.sent)
	b.mu.Lock() // giveUp, should it come that soon, waits until it is known who was asked
	attempt, ok := n.guard.Begin(b.giveUp)
	if !ok {
		b.mu.Unlock()
		due = append(due, n.take(maxBatch)...)
		for _, j := range due {
			j.drop(n, b.sent)
		}
		n.returned(len(due), false)
		return sent
	}
	defer attempt.Abort() // a panic or Goexit on the way is a failure too
	most := maxBatch
	if n.guard.State() != failover.Closed {
		most = 1 // a probe is one call
	}
	// Those whose time is over do not fill the pipeline, or just above its capacity a node would do nothing else.
	for ; len(due) > 0; due = n.take(most - len(b.calls)) {
		before := len(b.calls)
		for _, j := range due {
			if call, ok := j.begin(n, b.sent); ok {
				b.jobs = append(b.jobs, j)
				b.calls = append(b.calls, call)
			}
		}
		n.returned(len(due)-(len(b.calls)-before), false)
	}
	b.mu.Unlock()
	end := func(err error) result {
		inTime := attempt.End(err)
		n.returned(len(b.calls), !inTime)
		if !inTime {
			return givenUp
		}
		return sent
	}
	if len(b.calls) == 0 {
		return end(context.Canceled) // nothing was sent: that counts for nothing
	}

	n.calls.Add(int64(len(b.calls)))
	results := make([]remote.Result, len(b.calls))
	g.store.Run(context.Background(), g.options.Timeout, b.calls, results)
	r := end(outcome(results))
	if r == sent {
		b.finish(results)
	} else {
		n.lateReplies.Add(int64(len(results)))
	}
	return r
}

// returned notes that calls are no longer under way.
func (n *node) returned(calls int, givenUp bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inFlight -= calls
	if givenUp {
		n.start() // MaxInFlight may have held others up
	}
}

// outcome is what a batch says about the node: nothing bad when any call was answered, else an error, of which a
// misconfiguration says most.
func outcome(results []remote.Result) (err error) {
	for _, r := range results {
		switch failover.Classify(r.Err) {
		case failover.Fine, failover.KeyFault:
			return nil
		case failover.Misconfigured:
			err = r.Err
		default:
			if err == nil {
				err = r.Err
			}
		}
	}
	return err
}

// giveUp ends a batch that takes longer than Timeout: those who wait get an answer now, and the sender's place is free.
func (b *batch) giveUp() {
	b.mu.Lock()
	results := make([]remote.Result, len(b.jobs))
	b.mu.Unlock()
	for i := range results {
		results[i].Err = errGivenUp
	}
	b.finish(results)
	n := b.node
	n.mu.Lock()
	n.sending--
	n.start()
	n.mu.Unlock()
}

// finish hands out the results: once, as the breaker's attempt ends once.
func (b *batch) finish(results []remote.Result) {
	n, now := b.node, b.node.group.now()
	for i, j := range b.jobs {
		r := results[i]
		switch {
		case r.Err != nil && !isScriptError(r.Err):
			n.failures.Add(1)
		case r.Err != nil:
		case r.Reply.Code == remote.Late:
			n.lateCalls.Add(1)
			n.clock.correct(b.sent, now, r.Reply.Now)
		default:
			n.note(&b.calls[i], r.Reply)
			b.answering(i).clock.learn(b.sent, now, r.Reply.Now)
		}
		j.end(n, now, &b.calls[i], b.sent, r)
	}
}

// answering is the node that answered a call: known by now, even if it was not when the call was queued.
func (b *batch) answering(call int) *node {
	g := b.node.group
	if b.node.id == "" {
		return g.node(g.store.Node(b.calls[call].Bucket))
	}
	return b.node
}

// note counts what a reply tells about the node.
func (n *node) note(c *remote.Call, r remote.Reply) {
	if r.Code == remote.Stale {
		n.staleReplies.Add(1)
	}
	if r.Flags&remote.OtherEpoch != 0 || c.Hold > 0 && r.Flags&remote.Created != 0 {
		n.stateLosses.Add(1)
	}
}

// changed tells of the breaker's changes, and logs its opening and closing, one line each; probes that fail are not worth
// one.
func (n *node) changed(e failover.Event) {
	g := n.group
	g.trace.state(StateEvent{Node: string(n.id), From: e.From.String(), To: e.To.String(), Err: e.Err})
	switch {
	case e.To == failover.Closed:
		n.mu.Lock()
		n.closedAt = g.now()
		n.mu.Unlock()
		g.trace.put(func() { g.options.Logger.Info("redis answers again", "node", string(n.id)) })
	case e.To == failover.Open && e.From == failover.Closed:
		g.trace.put(func() {
			g.options.Logger.Warn("redis does not answer: the fail modes decide", "node", string(n.id), "error", e.Err)
		})
	}
}

func isScriptError(err error) bool {
	var e *remote.ScriptError
	return errors.As(err, &e)
}
