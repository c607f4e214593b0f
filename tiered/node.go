package tiered

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

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
	// end tells what came of the call, once; err wraps errGivenUp when the call took longer than Timeout.
	end(n *node, now time.Duration, seq int64, r remote.Result)
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

	mu       sync.Mutex
	queue    []job
	sending  int // senders at work, but for those whose batch was given up
	inFlight int // calls sent and not returned, given up or not

	trouble atomic.Bool // the last batch failed
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

// next takes what is due off the queue; none when the sender should end.
func (n *node) next() []job {
	n.mu.Lock()
	defer n.mu.Unlock()
	room := n.group.options.MaxInFlight - n.inFlight
	count := min(len(n.queue), maxBatch, room)
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

	mu    sync.Mutex
	ended bool
}

// run sends the batch and hands out the results. It reports false when the batch was given up meanwhile.
func (b *batch) run() bool {
	n, g := b.node, b.node.group
	b.sent = g.now()
	g.watchClock(b.sent)
	asked := b.jobs[:0]
	for _, j := range b.jobs {
		if call, ok := j.begin(n, b.sent); ok {
			asked = append(asked, j)
			b.calls = append(b.calls, call)
		}
	}
	dropped := len(b.jobs) - len(asked)
	b.jobs = asked
	if len(asked) == 0 {
		n.returned(dropped, false)
		return true
	}

	n.calls.Add(int64(len(asked)))
	results := make([]remote.Result, len(asked))
	watch := time.AfterFunc(g.options.Timeout, b.giveUp)
	g.store.Run(context.Background(), g.options.Timeout, b.calls, results)
	watch.Stop()
	givenUp := !b.finish(results)
	n.returned(dropped+len(asked), givenUp)
	return !givenUp
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
	results := make([]remote.Result, len(b.jobs))
	for i := range results {
		results[i].Err = errGivenUp
	}
	if b.finish(results) {
		n := b.node
		n.mu.Lock()
		n.sending--
		n.start()
		n.mu.Unlock()
	}
}

// finish hands out the results, unless that has been done.
func (b *batch) finish(results []remote.Result) bool {
	b.mu.Lock()
	ended := b.ended
	b.ended = true
	b.mu.Unlock()
	n, now := b.node, b.node.group.now()
	if ended {
		n.lateReplies.Add(int64(len(results)))
		return false
	}
	failed := 0
	var last error
	for i, j := range b.jobs {
		r := results[i]
		switch {
		case r.Err != nil && !isScriptError(r.Err):
			failed++
			last = r.Err
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
		j.end(n, now, b.calls[i].Seq, r)
	}
	n.failures.Add(int64(failed))
	n.state(failed == len(results), last)
	return true
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

// state logs the node's going and coming back, one line each.
func (n *node) state(trouble bool, err error) {
	if n.trouble.Swap(trouble) == trouble {
		return
	}
	level, text := slog.LevelInfo, "redis answers again"
	attrs := []slog.Attr{slog.String("node", string(n.id))}
	if trouble {
		level, text = slog.LevelWarn, "redis does not answer"
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	n.group.options.Logger.LogAttrs(context.Background(), level, text, attrs...)
}

func isScriptError(err error) bool {
	var e *remote.ScriptError
	return errors.As(err, &e)
}
