package tiered

import (
	"context"
	"errors"
	"log/slog"
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
	sending  int           // senders at work, but for those whose batch was given up
	inFlight int           // calls sent and not returned, given up or not
	closedAt time.Duration // when the breaker closed again

	calls, failures, lateReplies,
	staleReplies, lateCalls, stateLosses atomic.Int64
}

// push puts a job into the queue, and sees to it that a sender takes it.
func (n *node) push(j job) {
	n.mu.Lock()
	n.queue = append(n.queue, j)
	n.start()
	n.mu.Unlock()
}

// start starts a sender if there is something to send and room to send it.
func (n *node) start() {
	if len(n.queue) > 0 && n.sending < senders && n.inFlight < n.group.options.MaxInFlight {
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

// next takes what is due off the queue; none when the sender should end.
func (n *node) next() []job {
	now := n.group.now()
	n.mu.Lock()
	defer n.mu.Unlock()
	room := n.group.options.MaxInFlight
	if n.closedAt > 0 && now < n.closedAt+gentleTime {
		room = min(room, gentle)
	}
	count := min(len(n.queue), maxBatch, room-n.inFlight)
	if n.guard.State() != failover.Closed {
		count = min(count, 1) // a probe is one call
	}
	if count <= 0 {
		n.sending--
		return nil
	}
	jobs := append([]job(nil), n.queue[:count]...)
	rest := copy(n.queue, n.queue[count:])
	clear(n.queue[rest:])
	n.queue = n.queue[:rest]
	n.inFlight += count
	return jobs
}

// send empties the queue, batch by batch. It ends when nothing is due, or when a batch took so long that it was given up:
// then another sender has its place.
func (n *node) send() {
	for {
		jobs := n.next()
		if jobs == nil {
			return
		}
		b := batch{node: n, jobs: jobs}
		if !b.run() {
			return
		}
	}
}

// batch is one pipeline under way.
type batch struct {
	node  *node
	jobs  []job
	calls []remote.Call
	sent  time.Duration

	mu sync.Mutex // jobs, while giveUp may read them
}

// run sends the batch and hands out the results. It reports false when the batch was given up meanwhile.
func (b *batch) run() bool {
	n, g := b.node, b.node.group
	b.sent = g.now()
	g.watchClock(b.sent)
	taken := len(b.jobs)
	b.mu.Lock() // giveUp, should it come that soon, waits until it is known who was asked
	attempt, ok := n.guard.Begin(b.giveUp)
	if !ok {
		b.mu.Unlock()
		for _, j := range b.jobs {
			j.drop(n, b.sent)
		}
		n.returned(taken, false)
		return true
	}
	defer attempt.Abort() // a panic or Goexit on the way is a failure too
	asked := make([]job, 0, len(b.jobs))
	for _, j := range b.jobs {
		if call, ok := j.begin(n, b.sent); ok {
			asked = append(asked, j)
			b.calls = append(b.calls, call)
		}
	}
	b.jobs = asked
	b.mu.Unlock()
	if len(asked) == 0 {
		inTime := attempt.End(context.Canceled) // nothing was sent: that counts for nothing
		n.returned(taken, !inTime)
		return inTime
	}

	n.calls.Add(int64(len(asked)))
	results := make([]remote.Result, len(asked))
	g.store.Run(context.Background(), g.options.Timeout, b.calls, results)
	inTime := attempt.End(outcome(results))
	if inTime {
		b.finish(results)
	} else {
		n.lateReplies.Add(int64(len(results)))
	}
	n.returned(taken, !inTime)
	return inTime
}

// outcome is what a batch says about the node: nothing bad when any call was answered, else the last error.
func outcome(results []remote.Result) (err error) {
	for _, r := range results {
		if r.Err == nil {
			return nil
		}
		err = r.Err
	}
	return err
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
			if n.id != "" { // else the replies are of several servers
				n.clock.learn(b.sent, now, r.Reply.Now)
			}
		}
		j.end(n, now, &b.calls[i], b.sent, r)
	}
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

// changed logs the breaker's opening and closing, one line each; probes that fail are not worth one.
func (n *node) changed(e failover.Event) {
	n.group.trace.state(StateEvent{Node: string(n.id), From: e.From.String(), To: e.To.String(), Err: e.Err})
	attrs := []slog.Attr{slog.String("node", string(n.id))}
	switch {
	case e.To == failover.Closed:
		n.mu.Lock()
		n.closedAt = n.group.now()
		n.mu.Unlock()
		n.group.options.Logger.LogAttrs(context.Background(), slog.LevelInfo, "redis answers again", attrs...)
	case e.To == failover.Open && e.From == failover.Closed:
		if e.Err != nil {
			attrs = append(attrs, slog.String("error", e.Err.Error()))
		}
		n.group.options.Logger.LogAttrs(context.Background(), slog.LevelWarn,
			"redis does not answer: fail modes decide", attrs...)
	}
}

func isScriptError(err error) bool {
	var e *remote.ScriptError
	return errors.As(err, &e)
}
