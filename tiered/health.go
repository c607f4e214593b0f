package tiered

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// health is what a node has gone through: what Stats report of it, and what the journal has said.
type health struct {
	failed [8]atomic.Int64 // calls without an answer, by failover.Class

	overruns        atomic.Int64 // decisions that got no answer within Budget
	steps, believed atomic.Int64 // of the clock: seen by this process, and by buckets
	absent          atomic.Int64 // refreshes of presence that were not answered
	debts, reported atomic.Int64 // calls that settled, and the tokens
	slow            atomic.Bool  // overruns are being watched
	settlesWatched  atomic.Bool
	missed          atomic.Int64 // refreshes of presence in a row that failed though the breaker was closed
	uncounted       atomic.Bool  // the journal has said that it is not counted
	outages         atomic.Int64 // times that the breaker opened

	// Guarded by node.mu.
	openedAt time.Duration // of the outage that lasts, or the last one
	open     bool
	out      time.Duration  // all outages that are over
	cause    failover.Class // of what opened the breaker last, or left it open
	told     uint16         // classes that the journal has told of in this outage, as bits
}

// failures reports the calls without an answer.
func (h *health) failures() (sum int64) {
	for i := range h.failed {
		sum += h.failed[i].Load()
	}
	return sum
}

// outage reports for how long the breaker was not closed, all together, and what opened it last: "" for never.
func (n *node) outage() (out time.Duration, cause string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.outages.Load() == 0 {
		return 0, ""
	}
	out = n.out
	if n.open {
		out += n.group.now() - n.openedAt
	}
	return out, n.cause.String()
}

// lastCause reports what opened the breaker last, or left it open.
func (n *node) lastCause() failover.Class {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cause
}

// openings are the lines of a breaker that opens, by what opened it.
var openings = map[failover.Class]string{
	failover.Unreachable:   "redis does not answer: the fail modes decide",
	failover.Saturated:     "no connection to redis is free: the fail modes decide",
	failover.CannotServe:   "redis answers that it cannot serve: the fail modes decide",
	failover.Misconfigured: "redis refuses this user: the fail modes decide until somebody changes that",
}

// remedy is what to do about a misconfiguration.
const remedy = "compare user, password, ACL rule and certificates of Redis with those of its URL or client; once they fit, " +
	"a probe finds out within a second and nothing has to be restarted"

// changed tells of the breaker's changes. The journal has a line of its opening and of its closing, and one more for each
// other class of error that probes meet on the way: a Redis that died may come back with another password.
func (n *node) changed(e failover.Event) {
	g, node := n.group, string(n.id)
	at := e.At.Sub(g.base)
	n.trouble(e.To != failover.Closed)
	told := StateEvent{Node: node, From: e.From.String(), To: e.To.String(), Err: e.Err}
	switch e.To {
	case failover.Open:
		class := failover.Classify(e.Err)
		told.Class = class.String()
		if n.opened(at, class, e.From == failover.Closed) {
			level, about := slog.LevelWarn, []any{"node", node, "class", class.String(), "error", e.Err, "decide", g.failModes()}
			if class == failover.Misconfigured {
				level, about = slog.LevelError, append(about, "remedy", remedy)
			}
			g.journal.line(level, openings[class], about...)
		}
	case failover.Closed:
		told.After = n.closed(at)
		g.journal.line(slog.LevelInfo, "redis answers again", "node", node, "after", told.After)
		n.watchDebts()
	}
	g.trace.state(told)
}

// opened notes that the breaker opened or stays open, and reports whether that is news.
func (n *node) opened(at time.Duration, class failover.Class, first bool) (news bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if first {
		n.outages.Add(1)
		n.open, n.openedAt, n.told = true, at, 0
	}
	if openings[class] == "" {
		return false // a probe that had nothing to send
	}
	n.cause = class
	news = n.told&(1<<class) == 0
	n.told |= 1 << class
	return news
}

// closed notes that the breaker closed, and reports after how long.
func (n *node) closed(at time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closedAt = n.group.now()
	after := at - n.openedAt
	n.open = false
	n.out += after
	return after
}

// failModes says what decides now: "fail-local: api, login; fail-closed: pay". Of a mode's policies it names the first few.
func (g *Group) failModes() string {
	const few = 5
	g.limiters.mu.RLock()
	defer g.limiters.mu.RUnlock()
	var modes []string
	for m := range failModes {
		var names []string
		for _, l := range g.limiters.all {
			if l.whole == l && l.Policy().FailMode == FailMode(m) {
				names = append(names, l.name)
			}
		}
		if len(names) > few {
			names = append(slices.Clip(names[:few]), "…")
		}
		if len(names) > 0 {
			modes = append(modes, failModes[m]+": "+strings.Join(names, ", "))
		}
	}
	return strings.Join(modes, "; ")
}

// settleTime is how long after an outage its debts are added up for one line: keys in use settle within their period.
const settleTime = 5 * time.Second

// settled notes a call that reported what was admitted without Redis.
func (n *node) settled(tokens int64) {
	if tokens > 0 {
		n.debts.Add(1)
		n.reported.Add(tokens)
	}
}

// watchDebts has the journal say what was settled after an outage: once for those that follow each other closely.
func (n *node) watchDebts() {
	if n.settlesWatched.Swap(true) {
		return
	}
	debts, tokens := n.debts.Load(), n.reported.Load()
	n.group.journal.in(settleTime, true, func() {
		n.settlesWatched.Store(false)
		if tokens := n.reported.Load() - tokens; tokens > 0 {
			n.group.journal.line(slog.LevelInfo, "what was admitted without redis was reported to it",
				"node", string(n.id), "tokens", tokens, "keys", n.debts.Load()-debts)
		}
	})
}

const (
	// slowLeast is how many decisions within a second must have waited in vain for a line: fewer are a hiccup.
	slowLeast = 3

	// slowTime without one is the end of it.
	slowTime = 10 * time.Second
)

// overran notes a decision that got no answer within Budget. The breaker knows nothing of it, while answers come within
// Timeout: so the journal says when that begins and when it ends.
func (n *node) overran() {
	before := n.overruns.Add(1) - 1
	if n.slow.Load() || n.slow.Swap(true) {
		return
	}
	outages := n.outages.Load()
	n.group.journal.in(tallyTime, false, func() { n.slowly(before, outages) })
}

// slowly says that a node is slow, unless its breaker has opened: each outage begins with a few decisions that waited.
func (n *node) slowly(before, outages int64) {
	count := n.overruns.Load()
	if count-before < slowLeast || n.outages.Load() != outages || n.guard.State() != failover.Closed {
		n.slow.Store(false)
		return
	}
	n.group.journal.line(slog.LevelWarn, "redis answers later than Budget: the fail modes decide for keys without a lease",
		"node", string(n.id), "round trip", n.clock.RoundTrip(), "budget", n.group.options.Budget, "decide", n.group.failModes())
	n.group.journal.in(slowTime, false, func() { n.slowStill(before, count, outages) })
}

// slowStill looks whether that goes on.
func (n *node) slowStill(before, seen, outages int64) {
	count := n.overruns.Load()
	switch {
	case n.outages.Load() != outages: // which had lines of its own
		n.slow.Store(false)
	case count == seen:
		n.slow.Store(false)
		n.group.journal.line(slog.LevelInfo, "redis answers within Budget again", "node", string(n.id), "decisions", count-before)
	default:
		n.group.journal.in(slowTime, false, func() { n.slowStill(before, count, outages) })
	}
}

// stepped notes that the node's clock was set.
func (n *node) stepped(by time.Duration) {
	if by == 0 {
		return
	}
	g := n.group
	n.steps.Add(1)
	g.trace.fault(FaultEvent{Fault: "clock step", Node: string(n.id), By: by})
	g.journal.tally("clock "+string(n.id), 1, slog.LevelWarn, "the clock of redis was set", "node", string(n.id), "by", by)
}

// missedMost is how many refreshes of presence must fail in a row before that is told: a restart of Redis costs one, and so
// does a refusal that the breaker is about to tell of.
const missedMost = 2

// presence notes what came of a refresh of presence. A process that is not counted makes everybody's share too large, and
// the breaker does not tell: it may be closed, or this process idle.
func (n *node) presence(err error, closed bool) {
	g := n.group
	if err == nil {
		n.missed.Store(0)
		if n.uncounted.Swap(false) {
			g.trace.fault(FaultEvent{Fault: "presence", Node: string(n.id)})
			g.journal.line(slog.LevelInfo, "redis counts this process again", "node", string(n.id))
		}
		return
	}
	n.absent.Add(1)
	if !closed { // the breaker tells
		return
	}
	if n.missed.Add(1) < missedMost {
		return
	}
	class := failover.Classify(err)
	level := slog.LevelWarn
	if class == failover.Misconfigured || class == failover.KeyFault {
		level = slog.LevelError // it does not heal by itself
	}
	if !n.uncounted.Swap(true) {
		g.trace.fault(FaultEvent{Fault: "presence", Node: string(n.id), Err: err})
		g.journal.line(level, "redis does not count this process: shares are too large while it does not answer",
			"node", string(n.id), "class", class.String(), "error", err)
	}
}
