package dispatch

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// send is the loop of a sender. It sends the queue batch by batch, and waits while the queue is
// empty. It returns when the Dispatcher ends. It also returns if its batch took longer than
// Timeout, because another sender then has its place.
func (n *Node) send() {
	b := batch{node: n}
	b.expired = b.giveUp
	run := b.run
	if n.id == "" { // it only finds the nodes of calls
		run = func() result { return n.locate(b.room[:]) }
	}
	for {
		n.yield() // calls of one instant leave together, in any order of arrival
		switch run() {
		case sent:
			b.reset()
			// Callers that just got their answers run first, because their next requests make the
			// next pipeline fuller. With 16 callers of cold keys it held 8 calls instead of 5, and
			// the process used 8 % less CPU. Gosched returns at once if nothing else can run.
			runtime.Gosched()
		case idle:
			if !n.idle() {
				return
			}
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

// batch is one pipeline under way. A sender reuses its batch. A batch that was given up is not
// reused, because its sender ends.
type batch struct {
	node    *Node
	room    [maxBatch]Pending // for calls taken off the queue
	jobs    []Job
	calls   []lua.Call
	results []remote.Result
	sent    time.Duration
	attempt *failover.Attempt // the last one
	expired func()            // giveUp

	mu sync.Mutex // guards jobs while giveUp may read them
}

// run sends pending calls in one pipeline and delivers the results.
func (b *batch) run() result {
	n, d := b.node, b.node.dispatcher
	limit := maxBatch
	if n.guard.State() != failover.Closed {
		limit = 1 // a probe is one call
	}
	due := n.take(limit, b.room[:]) // in one step, so that calls pushed together leave together
	if len(due) == 0 {
		return idle
	}
	b.sent = d.now()
	d.options.CheckClock(b.sent)
	b.mu.Lock() // an early giveUp waits until jobs is complete
	attempt, ok := n.guard.BeginAgain(b.attempt, b.expired)
	if !ok {
		b.mu.Unlock()
		n.abandon(append(due, n.take(maxBatch, nil)...), b.sent)
		return sent
	}
	b.attempt = attempt
	defer attempt.Abort()                                // a panic or Goexit from here on is a failure too
	if limit > 1 && n.guard.State() != failover.Closed { // the breaker has opened meanwhile
		n.abandon(due[1:], b.sent)
		due, limit = due[:1], 1
	}
	// Calls that have expired do not fill the pipeline. Otherwise a node just above its capacity
	// would get no others.
	for ; len(due) > 0; due = n.take(limit-len(b.calls), due) {
		b.compose(due)
	}
	b.mu.Unlock()
	if len(b.calls) == 0 {
		return b.end(context.Canceled) // nothing was sent, so nothing was learned
	}
	shown := b.exchange(n.pace.patience())
	r := b.end(shown)
	if r == sent {
		b.finish(b.results)
	} else {
		n.answeredLate(len(b.results), shown)
	}
	return r
}

// answeredLate notes replies that came after their attempt had ended, and what they show.
func (n *Node) answeredLate(replies int, shown error) {
	n.LateReplies.Add(int64(replies))
	if shown == nil {
		n.guard.Answered()
	}
}

// compose adds the calls of due that are still wanted.
func (b *batch) compose(due []Pending) {
	before := len(b.calls)
	// A Call is large: it is copied once, not log n times.
	b.jobs, b.calls = slices.Grow(b.jobs, len(due)), slices.Grow(b.calls, len(due))
	for _, p := range due {
		if call, ok := p.Job.Compose(b.node, b.sent, p.Bucket); ok {
			b.jobs = append(b.jobs, p.Job)
			b.calls = append(b.calls, call)
		}
	}
	b.node.callsDone(len(due) - (len(b.calls) - before))
}

// exchange sends the calls and waits for the replies, for timeout at most. It returns what they
// show about the node: see batchError.
func (b *batch) exchange(timeout time.Duration) (shown error) {
	n, d := b.node, b.node.dispatcher
	n.Calls.Add(int64(len(b.calls)))
	b.results = append(b.results, make([]remote.Result, len(b.calls))...)
	d.options.Store.Run(context.Background(), timeout, b.calls, b.results)
	n.overrideDenials(b.calls, b.results)
	shown, trip := batchError(b.calls, b.results), d.now()-b.sent
	if shown == nil {
		n.Trips.Observe(trip)
	}
	if slices.ContainsFunc(b.results, func(r remote.Result) bool { return r.Err == nil }) { // also a peek, which shows nothing else
		n.heard(trip)
	}
	return shown
}

// end ends the batch' attempt. If the batch was given up before, its jobs have their results.
func (b *batch) end(err error) result {
	if !b.attempt.End(err) {
		return givenUp
	}
	b.node.callsDone(len(b.calls))
	return sent
}

// reset empties a batch that was sent, and drops its references.
func (b *batch) reset() {
	clear(b.room[:])
	clear(b.jobs)
	clear(b.calls)
	clear(b.results)
	b.jobs, b.calls, b.results = b.jobs[:0], b.calls[:0], b.results[:0]
}

// abandon tells the jobs of calls that were taken off the queue that nothing can be sent.
func (n *Node) abandon(due []Pending, now time.Duration) {
	for _, p := range due {
		p.Job.Abandon(n, now)
	}
	n.callsDone(len(due))
}

// callsDone counts calls that are no longer under way.
func (n *Node) callsDone(calls int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inFlight -= calls
}

// wrote reports whether the answer to a call shows that the node takes writes. A grant is written,
// and so is every result of a leased call. A denied direct take writes nothing, so it shows
// nothing, and neither does a dry run.
func wrote(c *lua.Call, r *remote.Result) bool {
	code := r.Reply.Code
	return r.Err == nil && (code == lua.Granted || code == lua.Denied) && (r.Reply.Grant > 0 || c.Lease != "") && !c.Dry()
}

// overrideDenials replaces the denials of a node that refuses writes by its error: in the pipeline
// with that error, and in later ones until a reply shows that the node writes again. A replica and
// a full server still answer calls that write nothing, but a store that cannot write must not
// decide.
func (n *Node) overrideDenials(calls []lua.Call, results []remote.Result) {
	before := n.writeError.Load()
	last, refused := before, (*error)(nil) // in this pipeline
	written := false
	for i := range results {
		switch r := &results[i]; {
		case r.Err != nil && failover.Classify(r.Err) == failover.CannotServe:
			err := r.Err
			last, refused = &err, &err
		case wrote(&calls[i], r):
			last, written = nil, true
		}
	}
	if refused == nil && !written {
		refused = before
	}
	if last != before {
		n.writeError.Store(last)
	}
	if refused == nil {
		return
	}
	for i := range results {
		if r := &results[i]; r.Err == nil && r.Reply.Code == lua.Denied && !wrote(&calls[i], r) {
			*r = remote.Result{Err: *refused}
		}
	}
}

// batchError returns what a batch shows about the node: nil if any call was answered, or refused
// alone, and otherwise one of the errors, preferably a misconfiguration. An answered peek or dry
// run shows nothing, because it does not write: a replica or a full server answers it too.
func batchError(calls []lua.Call, results []remote.Result) (err error) {
	peeked := false
	for i, r := range results {
		switch failover.Classify(r.Err) {
		case failover.Fine, failover.KeyFault, failover.Refused:
			if !calls[i].Dry() && (calls[i].Want > 0 || calls[i].Lease != "") {
				return nil
			}
			peeked = true
		case failover.Misconfigured:
			err = r.Err
		default:
			if err == nil {
				err = r.Err
			}
		}
	}
	if err == nil && peeked {
		return context.Canceled // nothing was learned
	}
	return err
}

// giveUp ends a batch that takes longer than Timeout. Its jobs get an error now, and the sender's
// place becomes free.
func (b *batch) giveUp() {
	b.node.pace.noAnswer(b.node.dispatcher.now())
	b.mu.Lock()
	results := make([]remote.Result, len(b.jobs))
	b.mu.Unlock()
	for i := range results {
		results[i].Err = ErrNoAnswer
	}
	b.finish(results)
	b.node.callsDone(len(results))
	b.node.freeSender()
}

// finish delivers the results. It is called once, because the breaker's attempt ends once.
func (b *batch) finish(results []remote.Result) {
	n, d := b.node, b.node.dispatcher
	now := d.now()
	d.options.CheckClock(now) // the machine may have stood still since the batch left
	for i, j := range b.jobs {
		r := results[i]
		switch {
		case r.Err != nil && !IsScriptError(r.Err):
			class := failover.Classify(r.Err)
			if n.Failed[class].Add(1); class == failover.Refused {
				n.observer.Refused(r.Err)
			}
		case r.Err != nil:
		case r.Reply.Code == lua.Late:
			n.LateCalls.Add(1)
			if !r.Elsewhere {
				n.stepped(n.clock.correct(b.sent, now, r.Reply.Now))
			}
		default:
			n.countReply(r.Reply)
			if !r.Elsewhere {
				n.stepped(n.clock.learn(b.sent, now, r.Reply.Now))
			}
		}
		j.Finish(n, now, &b.calls[i], b.sent, r)
	}
}

// IsScriptError reports whether err means that the store refused a call because of its bucket.
func IsScriptError(err error) bool {
	var e *remote.ScriptError
	return errors.As(err, &e)
}
