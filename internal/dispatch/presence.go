package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// PresenceTTL is how long a silent process counts: three periods, and a second for a slow refresh.
const PresenceTTL = 10 * time.Second

// refreshPresence refreshes this process' presence every period, at each node in use, or at all
// nodes after UseAllNodes.
func (d *Dispatcher) refreshPresence(ctx context.Context) {
	timer := time.NewTimer(PresencePeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.refresh: // it teaches a new node's clock, and announces a new policy
		case <-timer.C:
		}
		d.addAllNodes()
		select {
		case <-d.refresh: // a node that addAllNodes has just added is refreshed below
		default:
		}
		var all sync.WaitGroup
		for _, n := range d.Nodes() {
			all.Go(func() { // Stats and the log tell of errors
				_ = n.reportPresence(ctx, PresenceTTL, d.now()+n.longest())
			})
		}
		all.Wait()
		// A tenth of jitter, so that processes started together do not stay in step.
		pause := PresencePeriod - time.Duration(d.options.Uniform()*float64(PresencePeriod)/10)
		if r, ok := d.options.Store.(Rester); ok && !d.allNodes.Load() { // standing shares would end
			pause = max(pause, time.Until(r.RestsUntil()))
		}
		timer.Reset(pause)
	}
}

// Rester is a store of a test that lets a long time pass. Nobody asks for anything until then, so
// no process has to say that it is there: a month of that would take a quarter of a minute.
type Rester interface{ RestsUntil() time.Time }

// addAllNodes adds all nodes of the store after UseAllNodes. A standing share decides over keys of
// all nodes, so each process must be counted at all of them. While the store knows no node, it adds
// the node without a name, which looks for them. A Cluster's list of nodes may lack one with few
// slots, but the table may be on it.
func (d *Dispatcher) addAllNodes() {
	if !d.allNodes.Load() {
		return
	}
	d.Node(d.options.Store.TableNode())
	for _, id := range d.options.Store.Nodes() {
		d.Node(id)
	}
}

// look looks for the nodes of the store if none is known. It is also a probe of the node without a
// name: its jobs come to an end when the nodes are known, so nothing else would close its breaker.
func (n *Node) look(ctx context.Context) error {
	d := n.dispatcher
	known := len(d.options.Store.Nodes()) > 0
	attempt, err := n.probe()
	if err != nil || attempt == nil && known {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, n.pace.patience())
	defer cancel()
	begun := d.now()
	if _, err = d.options.Store.Locate(ctx, d.options.Store.Key("", "")); err == nil {
		n.heard(d.now() - begun)
	} else if ctx.Err() != nil {
		n.pace.noAnswer(d.now())
	}
	if attempt != nil {
		attempt.End(err)
	}
	if !known && len(d.options.Store.Nodes()) > 0 {
		d.Refresh() // at all of them
	}
	return err
}

// probeUntilBack probes a node whose breaker has opened until it closes again, so that no request
// has to find out that the node is back. A probe reports this process' presence, which is a write,
// as soon as the breaker lets one through.
func (n *Node) probeUntilBack(ctx context.Context) {
	d := n.dispatcher
	timer := time.NewTimer(n.guard.ProbeAt() - d.now())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.forgotten:
			return
		case <-timer.C:
		}
		n.yield()
		if n.back() {
			return
		}
		pause := n.Timeout() // another probe is under way
		if due := n.guard.ProbeAt(); n.guard.ReadyAt(d.now()) {
			_ = n.reportPresence(ctx, PresenceTTL, d.now()+n.longest())
			if pause = 0; due == n.guard.ProbeAt() { // it showed nothing, as where a node has no slot for a presence
				pause = PresencePeriod
			}
		}
		timer.Reset(max(pause, n.guard.ProbeAt()-d.now()))
	}
}

// back reports whether the breaker has closed, and notes that nobody probes then.
func (n *Node) back() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.open {
		n.probed = false
	}
	return !n.open
}

// probe begins an attempt if the breaker is not closed: an idle process makes no other. It returns
// WhyOpen if the node must not be asked now, and nil while the breaker is closed.
func (n *Node) probe() (*failover.Attempt, error) {
	if n.guard.State() == failover.Closed {
		return nil, nil
	}
	attempt, ok := n.guard.Begin(func() {})
	if !ok {
		return nil, n.WhyOpen()
	}
	return attempt, nil
}

// ErrOpen says that a node was not asked, because its breaker is open: see [Node.WhyOpen].
var ErrOpen = errors.New("the breaker is open")

// Ping refreshes this process' presence at all nodes that the store knows now, and reports those
// that did not answer, or that will refuse calls of these algorithms. It blocks until all have
// answered, at most for two ClientTimeouts, or 2 s while a node does not answer, and what cause
// takes, which may replace an error by one that says more.
func (d *Dispatcher) Ping(ctx context.Context, algorithms []lua.Algorithm, cause func(remote.Node, error) error) error {
	ids, begun, least := d.options.Store.Nodes(), d.now(), time.Duration(0)
	if len(ids) == 0 { // a Cluster of which nothing is known yet
		least = max(2*d.options.ClientTimeout, maxPatience)
		locating, cancel := context.WithTimeout(ctx, least)
		defer cancel()
		id, err := d.options.Store.Locate(locating, "ping")
		if err != nil {
			return fmt.Errorf("no node is known: %w", err)
		}
		if ids = d.options.Store.Nodes(); len(ids) == 0 {
			ids = []remote.Node{id}
		}
	}
	errs := make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			n := d.Node(id)
			until := begun + max(n.longest(), least)
			err := n.reportPresence(ctx, PresenceTTL, until)
			if err == nil || failover.Classify(err) == failover.Refused { // then it says more
				patience := min(n.pace.patience(), until-d.now())
				if why := d.options.Store.Inspect(ctx, patience, id, algorithms); why != nil {
					err = why
				}
			}
			if err != nil {
				errs[i] = fmt.Errorf("node %q: %w", id, cause(id, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// errLeft says that this process has left a node.
var errLeft = errors.New("this process has left")

// longest is how long a refresh of the presence may take, with the wait for one that is under way.
func (n *Node) longest() time.Duration {
	return max(2*n.dispatcher.options.ClientTimeout, n.pace.patience())
}

// reportPresence refreshes the presence at one node, or ends it for good if ttl is 0. If that
// fails, the next period repeats it. A refresh ends at until at the latest, although it may have to
// wait for another one first.
func (n *Node) reportPresence(ctx context.Context, ttl, until time.Duration) error {
	if n.id == "" {
		if ttl == 0 {
			return nil
		}
		return n.look(ctx)
	}
	d, callerCtx := n.dispatcher, ctx
	if ttl > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, until-d.now())
		defer cancel()
	}
	// One after the other: a refresh that is executed after the leaving would count a process that
	// is gone.
	select {
	case n.presence <- struct{}{}:
		defer func() { <-n.presence }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if n.left = n.left || ttl == 0; n.left && ttl > 0 {
		return errLeft
	}
	timeout, short := n.Timeout(), false
	if ttl > 0 {
		timeout = n.pace.patience()
		left := until - d.now()
		short = left < timeout-timeout/8
		timeout = min(timeout, left)
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 2*timeout) // Close waits
		defer cancel()
	}
	// Nothing is learned of a node that does not answer if the caller does not wait, or has too
	// little time.
	return n.sendPresence(ctx, timeout, ttl, func() bool { return callerCtx.Err() == nil && !short })
}

// sendPresence sends the presence, and notes what its answer tells of the node. No answer says
// something if waited reports true afterwards.
func (n *Node) sendPresence(ctx context.Context, timeout, ttl time.Duration, waited func() bool) error {
	d := n.dispatcher
	var announced remote.Announcement
	var version int64
	var keep time.Duration
	if ttl > 0 {
		announced, keep, version = d.options.Announced()
	}
	sent := d.now()
	d.options.CheckClock(sent) // before this process names itself, and states the right that it has
	attempt, err := n.probe()
	if err != nil {
		return err
	}
	if attempt != nil {
		defer attempt.Abort()
		n.Calls.Add(1)
	}
	p := remote.Process{ID: d.options.Lease(), TTL: ttl, Announced: announced, Keep: keep}
	if n.id == d.options.Store.TableNode() {
		p.Poll, _ = d.options.Poll(sent)
	}
	c, err := d.options.Store.Presence(ctx, timeout, n.id, p)
	n.judgePresence(attempt, err, d.now()-sent, waited())
	if errors.Is(err, remote.ErrNoPresence) && n.hasLeft() {
		d.forget(n)
		return err
	}
	if c.Poll.Sent { // also if the presence was refused
		now := d.now()
		d.options.CheckClock(now) // the machine may have stood still since the poll left
		d.options.Polled(now, p.Poll, c.Poll)
	}
	if ttl == 0 {
		return err
	}
	switch {
	case err == nil:
	case attempt == nil:
		n.Absences.Add(1)
	default:
		n.Failed[failover.Classify(err)].Add(1)
	}
	if n.observer.Present(err, attempt != nil); err == nil {
		n.count(sent, announced, version, c)
	}
	return err
}

// judgePresence tells the pace and the breaker of a report of the presence that ended with err
// after a while. attempt is nil unless it was a probe.
func (n *Node) judgePresence(attempt *failover.Attempt, err error, took time.Duration, waited bool) {
	switch {
	case err == nil:
		n.heard(took)
	case waited && failover.Classify(err) == failover.Unreachable:
		n.pace.noAnswer(n.dispatcher.now())
	}
	if attempt != nil {
		if err != nil && !waited || errors.Is(err, remote.ErrNoPresence) { // a node that left its Cluster was not asked
			err = context.Canceled
		}
		if !attempt.End(err) && err == nil {
			n.guard.Answered()
		}
	} else if err == nil && n.guard.State() != failover.Closed {
		n.guard.Answered() // it was under way when the breaker opened
	}
}

// count learns from a census how many processes there are.
func (n *Node) count(sent time.Duration, announced remote.Announcement, version int64, c remote.Census) {
	n.writeError.Store(nil) // the presence was written
	now := n.dispatcher.now()
	n.stepped(n.clock.learn(sent, now, c.Now))
	if version != n.dispatcher.version.Load() {
		// The counts are by the places of before. The next refresh, which is due, has those of now.
		n.fleets.all.learn(now, c.Processes)
		return
	}
	n.observer.Counted(announced, c, n.fleets.learn(now, c))
}

// hasLeft reports whether a node that no presence can be on has left its Cluster or Ring, and is
// not only one with few slots: it answers nothing, or nobody has called it since it was last seen
// so.
func (n *Node) hasLeft() bool {
	before, now := n.absentAt, n.Calls.Load()
	n.absentAt = now
	return n.guard.State() != failover.Closed || before == now
}

// Forget forgets how many processes have the policy of a place, because another policy has it from
// this version of the announcement on. A refresh must follow.
func (d *Dispatcher) Forget(place int, version int64) {
	d.version.Store(version)
	for _, n := range d.Nodes() {
		n.fleets.forget(place)
		n.observer.Forgotten(place)
	}
}
