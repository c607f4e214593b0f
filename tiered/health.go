package tiered

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
)

// health is the Group's observer of one node: it writes the journal's lines and the Trace's events, and counts for Stats what
// the dispatcher does not know.
type health struct {
	group *Group
	node  *dispatch.Node

	overruns            atomic.Int64 // decisions that got no answer within Budget
	debtCalls, reported atomic.Int64 // calls that settled, and the tokens
	stateLosses         atomic.Int64 // replies that showed that Redis had lost a bucket
	slow                atomic.Bool  // overruns are being watched
	debtLinePlanned     atomic.Bool  // a line about debts is planned
	missedRefreshes     atomic.Int64 // refreshes of presence in a row that failed though the breaker was closed
	absenceReported     atomic.Bool  // the journal has said that this process is not counted

	mu              sync.Mutex
	reportedClasses uint16 // classes that the journal has reported in this outage, as bits
}

// observer is a Group as its dispatcher's observer.
type observer struct{ group *Group }

// Look implements [dispatch.Observer].
func (o observer) Look(now time.Duration) { o.group.watchClock(now) }

// Node implements [dispatch.Observer].
func (o observer) Node(n *dispatch.Node) dispatch.NodeObserver {
	return &health{group: o.group, node: n}
}

// healthOf returns the Group's observer of a node.
func healthOf(n *dispatch.Node) *health { return n.Observer().(*health) }

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

// Changed implements [dispatch.NodeObserver]. The journal gets a line when the breaker opens and when it closes, and one more
// for each other class of error that probes meet in between: a Redis that died may come back with another password.
func (h *health) Changed(c dispatch.Change) {
	g, node := h.group, string(h.node.ID())
	event := StateEvent{Node: node, From: c.From.String(), To: c.To.String(), Err: c.Err}
	switch c.To {
	case failover.Open:
		event.Class = c.Class.String()
		if h.firstOf(c.Class, c.From == failover.Closed) {
			level, about := slog.LevelWarn, []any{"node", node, "class", event.Class, "error", c.Err, "decide", g.failModes()}
			if c.Class == failover.Misconfigured {
				level, about = slog.LevelError, append(about, "remedy", remedy)
			}
			g.journal.line(level, openings[c.Class], about...)
		}
	case failover.Closed:
		event.After = c.After
		g.journal.line(slog.LevelInfo, "redis answers again", "node", node, "after", c.After)
		h.planDebtLine()
	}
	g.trace.state(event)
}

// firstOf reports whether a class of error is the first of its kind in this outage, which may begin with it, and has a line.
func (h *health) firstOf(class failover.Class, begins bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if begins {
		h.reportedClasses = 0
	}
	if openings[class] == "" {
		return false // a probe that had nothing to send
	}
	first := h.reportedClasses&(1<<class) == 0
	h.reportedClasses |= 1 << class
	return first
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
			if l.parent == l && l.Policy().FailMode == FailMode(m) {
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
const debtLineDelay = 5 * time.Second

// settled notes a call that reported what was admitted without Redis.
func (h *health) countReported(tokens int64) {
	if tokens > 0 {
		h.debtCalls.Add(1)
		h.reported.Add(tokens)
	}
}

// watchDebts has the journal say what was settled after an outage: once for those that follow each other closely.
func (h *health) planDebtLine() {
	if h.debtLinePlanned.Swap(true) {
		return
	}
	debts, tokens := h.debtCalls.Load(), h.reported.Load()
	h.group.journal.after(debtLineDelay, true, func() {
		h.debtLinePlanned.Store(false)
		if tokens := h.reported.Load() - tokens; tokens > 0 {
			h.group.journal.line(slog.LevelInfo, "what was admitted without redis was reported to it",
				"node", string(h.node.ID()), "tokens", tokens, "keys", h.debtCalls.Load()-debts)
		}
	})
}

const (
	// minSlow is how many decisions within a second must have waited in vain for a line: fewer are a hiccup.
	minSlow = 3

	// slowTime without one is the end of it.
	slowTime = 10 * time.Second
)

// overran notes a decision that got no answer within Budget. The breaker knows nothing of it, while answers come within
// Timeout: so the journal says when that begins and when it ends.
func (h *health) countOverrun() {
	before := h.overruns.Add(1) - 1
	if h.slow.Load() || h.slow.Swap(true) {
		return
	}
	outages := h.node.Outages()
	h.group.journal.after(tallyTime, false, func() { h.reportSlow(before, outages) })
}

// slowly says that a node is slow, unless its breaker has opened: each outage begins with a few decisions that waited.
func (h *health) reportSlow(before, outages int64) {
	count := h.overruns.Load()
	if count-before < minSlow || h.node.Outages() != outages || h.node.State() != failover.Closed {
		h.slow.Store(false)
		return
	}
	h.group.journal.line(slog.LevelWarn, "redis answers later than Budget: the fail modes decide for keys without a lease",
		"node", string(h.node.ID()), "round trip", h.node.RoundTrip(), "budget", h.group.options.Budget, "decide", h.group.failModes())
	h.group.journal.after(slowTime, false, func() { h.checkStillSlow(before, count, outages) })
}

// slowStill looks whether that goes on.
func (h *health) checkStillSlow(before, seen, outages int64) {
	count := h.overruns.Load()
	switch {
	case h.node.Outages() != outages: // which had lines of its own
		h.slow.Store(false)
	case count == seen:
		h.slow.Store(false)
		h.group.journal.line(slog.LevelInfo, "redis answers within Budget again", "node", string(h.node.ID()), "decisions", count-before)
	default:
		h.group.journal.after(slowTime, false, func() { h.checkStillSlow(before, count, outages) })
	}
}

// Stepped implements [dispatch.NodeObserver].
func (h *health) Stepped(by time.Duration) {
	g, node := h.group, string(h.node.ID())
	g.trace.fault(FaultEvent{Fault: "clock step", Node: node, By: by})
	g.journal.tally("clock "+node, 1, slog.LevelWarn, "the clock of redis was set", "node", node, "by", by)
}

// Counted implements [dispatch.NodeObserver].
func (h *health) Counted(before, after int64) {
	if after != before {
		h.group.journal.line(slog.LevelDebug, "another number of processes shares the limits",
			"node", string(h.node.ID()), "from", before, "to", after)
	}
	h.group.fleetKnown.Store(true)
}

// maxMissed is how many refreshes of presence must fail in a row before that is told: a restart of Redis costs one, and so
// does a refusal that the breaker is about to tell of.
const maxMissedRefreshes = 2

// Present implements [dispatch.NodeObserver]. A process that is not counted makes everybody's share too large, and
// the breaker does not tell: it may be closed, or this process idle.
func (h *health) Present(err error, probe bool) {
	g := h.group
	if err == nil {
		h.missedRefreshes.Store(0)
		if h.absenceReported.Swap(false) {
			g.trace.fault(FaultEvent{Fault: "presence", Node: string(h.node.ID())})
			g.journal.line(slog.LevelInfo, "redis counts this process again", "node", string(h.node.ID()))
		}
		return
	}
	if probe { // the breaker reports it
		return
	}
	if h.missedRefreshes.Add(1) < maxMissedRefreshes {
		return
	}
	class := failover.Classify(err)
	level := slog.LevelWarn
	if class == failover.Misconfigured || class == failover.KeyFault {
		level = slog.LevelError // it does not heal by itself
	}
	if !h.absenceReported.Swap(true) {
		g.trace.fault(FaultEvent{Fault: "presence", Node: string(h.node.ID()), Err: err})
		g.journal.line(level, "redis does not count this process: shares are too large while it does not answer",
			"node", string(h.node.ID()), "class", class.String(), "error", err)
	}
}
