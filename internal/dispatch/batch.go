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

// send sends the queue batch by batch, and idles when it is empty. It returns at the end of the Dispatcher, or if its batch
// was given up: then another sender has its place.
func (n *Node) send() {
	b := batch{node: n}
	for {
		n.dispatcher.settle() // what is due now goes out together, whoever was quicker
		switch n.sendSome(&b) {
		case sent:
			b.forget()
			// Those who just got their answers go first: what they ask for next makes the next pipeline fuller. With 16
			// callers of cold keys it held 8 calls instead of 5, at 8 % less CPU of the process. It waits for nobody:
			// when nothing else can run it is back at once.
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

// sendSome sends what is due, or finds out where to.
func (n *Node) sendSome(b *batch) result {
	if n.id == "" {
		return n.locate(b.room[:])
	}
	return b.run()
}

// result is what became of a batch.
type result int

const (
	sent result = iota
	idle
	givenUp
)

// batch is one pipeline under way. A sender uses the same one again: when it is given up, which somebody may still be about
// to do in another goroutine, its sender has ended.
type batch struct {
	node    *Node
	room    [maxBatch]Pending // for what is taken off the queue
	jobs    []Job
	calls   []lua.Call
	results []remote.Result
	sent    time.Duration

	mu sync.Mutex // jobs, while giveUp may read them
}

// run sends what is due in one pipeline and hands out the results.
func (b *batch) run() result {
	n, d := b.node, b.node.dispatcher
	limit := maxBatch
	if n.guard.State() != failover.Closed {
		limit = 1 // a probe is one call
	}
	due := n.take(limit, b.room[:]) // all at once: what was pushed together stays together, when there is another sender
	if len(due) == 0 {
		return idle
	}
	b.sent = d.now()
	d.options.Observer.Look(b.sent)
	b.mu.Lock() // giveUp, should it come that soon, waits until it is known who was asked
	attempt, ok := n.guard.Begin(b.giveUp)
	if !ok {
		b.mu.Unlock()
		due = append(due, n.take(maxBatch, nil)...)
		for _, p := range due {
			p.Job.Abandon(n, b.sent)
		}
		n.returned(len(due))
		return sent
	}
	defer attempt.Abort()                                // a panic or Goexit on the way is a failure too
	if limit > 1 && n.guard.State() != failover.Closed { // it has changed meanwhile
		for _, p := range due[1:] {
			p.Job.Abandon(n, b.sent)
		}
		n.returned(len(due) - 1)
		due, limit = due[:1], 1
	}
	// Those whose time is over do not fill the pipeline, or just above its capacity a node would do nothing else.
	for ; len(due) > 0; due = n.take(limit-len(b.calls), due) {
		before := len(b.calls)
		b.jobs, b.calls = slices.Grow(b.jobs, len(due)), slices.Grow(b.calls, len(due)) // a Call is large: copied once, not log n times
		for _, p := range due {
			if call, ok := p.Job.Compose(n, b.sent, p.Bucket); ok {
				b.jobs = append(b.jobs, p.Job)
				b.calls = append(b.calls, call)
			}
		}
		n.returned(len(due) - (len(b.calls) - before))
	}
	b.mu.Unlock()
	end := func(err error) result {
		if !attempt.End(err) {
			return givenUp
		}
		n.returned(len(b.calls))
		return sent
	}
	if len(b.calls) == 0 {
		return end(context.Canceled) // nothing was sent: that counts for nothing
	}

	n.calls.Add(int64(len(b.calls)))
	b.results = append(b.results, make([]remote.Result, len(b.calls))...)
	d.options.Store.Run(context.Background(), d.options.Patience, b.calls, b.results)
	n.doubt(b.calls, b.results)
	r := end(outcome(b.calls, b.results))
	if r == sent {
		b.finish(b.results)
	} else {
		n.lateReplies.Add(int64(len(b.results)))
	}
	return r
}

// forget makes a batch that was sent ready for what is due next, and lets go of who was in it.
func (b *batch) forget() {
	clear(b.room[:])
	clear(b.jobs)
	clear(b.calls)
	clear(b.results)
	b.jobs, b.calls, b.results = b.jobs[:0], b.calls[:0], b.results[:0]
}

// returned notes that calls are no longer under way.
func (n *Node) returned(calls int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.inFlight -= calls
}

// wrote reports whether the answer to a call shows that the node takes writes: a grant is written, and so is whatever
// a call of a lease came to. Who is denied a direct take learns nothing of that: it writes nothing.
func wrote(c *lua.Call, r *remote.Result) bool {
	code := r.Reply.Code
	return r.Err == nil && (code == lua.Granted || code == lua.Denied) && (r.Reply.Grant > 0 || c.Lease != "")
}

// doubt puts the refusal of a node that refuses to write in place of the takes that it denied: in the same pipeline,
// or as long as nothing shows that it writes again. A replica and a server that is full answer what writes nothing,
// but a store that cannot write does not decide.
func (n *Node) doubt(calls []lua.Call, results []remote.Result) {
	before := n.refuses.Load()
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
		n.refuses.Store(last)
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

// outcome is what a batch says about the node: nothing bad when any call was answered, else an error, of which a
// misconfiguration says limit. That a look was answered says nothing: it does not write, so a replica or a server that is
// full answers it too.
func outcome(calls []lua.Call, results []remote.Result) (err error) {
	looked := false
	for i, r := range results {
		switch failover.Classify(r.Err) {
		case failover.Fine, failover.KeyFault:
			if calls[i].Want > 0 || calls[i].Lease != "" {
				return nil
			}
			looked = true
		case failover.Misconfigured:
			err = r.Err
		default:
			if err == nil {
				err = r.Err
			}
		}
	}
	if err == nil && looked {
		return context.Canceled // counts for nothing
	}
	return err
}

// giveUp ends a batch that takes longer than Timeout: those who wait get an answer now, and the sender's place is free.
func (b *batch) giveUp() {
	b.mu.Lock()
	results := make([]remote.Result, len(b.jobs))
	b.mu.Unlock()
	for i := range results {
		results[i].Err = ErrNoAnswer
	}
	b.finish(results)
	b.node.returned(len(results))
	b.node.replace()
}

// finish hands out the results: once, as the breaker's attempt ends once.
func (b *batch) finish(results []remote.Result) {
	n, d := b.node, b.node.dispatcher
	now := d.now()
	d.options.Observer.Look(now) // the machine may have stood still since the batch left
	for i, j := range b.jobs {
		r := results[i]
		switch {
		case r.Err != nil && !IsScriptError(r.Err):
			n.failed[failover.Classify(r.Err)].Add(1)
		case r.Err != nil:
		case r.Reply.Code == lua.Late:
			n.lateCalls.Add(1)
			if !r.Elsewhere {
				n.stepped(n.clock.correct(b.sent, now, r.Reply.Now))
			}
		default:
			n.note(r.Reply)
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
