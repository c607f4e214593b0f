package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// health is the Group's observer of one node. It writes the journal's lines and the Trace's events, and counts for
// Stats what the dispatcher does not know.
type health struct {
	group *Group
	node  *dispatch.Node

	overruns            atomic.Int64 // decisions that got no answer within Budget
	debtCalls, reported atomic.Int64 // calls that reported debts, and the tokens
	stateLosses         atomic.Int64 // replies that showed that Redis had lost a bucket
	slow                atomic.Bool  // the journal watches overruns
	debtLinePlanned     atomic.Bool  // a line about debts is planned
	doubtedUntil        atomic.Int64 // ns since the base: until then the node may have come back empty after an outage
	refreshes           atomic.Int64 // of presence that were answered
	missedRefreshes     atomic.Int64 // failed refreshes of presence in a row, while the breaker was closed
	absenceReported     atomic.Bool  // the journal has said that this process is not counted

	mu        sync.Mutex
	told, met failover.Class // in this outage: the class of the last line, and of the last failure
	census    remote.Census  // the last one
	unknown   map[int]bool   // the places of which it says nothing, because other policies have them since
}

// observer makes a Group the observer of its dispatcher.
type observer struct{ group *Group }

// CheckClock implements [dispatch.Observer].
func (o observer) CheckClock(now time.Duration) { o.group.watchClock(now) }

// Node implements [dispatch.Observer].
func (o observer) Node(n *dispatch.Node) dispatch.NodeObserver {
	return &health{group: o.group, node: n}
}

// healthOf returns the Group's observer of a node.
func healthOf(n *dispatch.Node) *health { return n.Observer().(*health) }

// openings are the log lines of a breaker that opens, by the class of the error.
var openings = map[failover.Class]string{
	failover.Unreachable:   "redis does not answer: the fail modes decide",
	failover.Saturated:     "no connection to redis is free: the fail modes decide",
	failover.CannotServe:   "redis answers that it cannot serve: the fail modes decide",
	failover.Misconfigured: "redis refuses this user: the fail modes decide until somebody changes that",
}

// remedy is what to do about a misconfiguration.
const remedy = "compare user, password, ACL rule and certificates of Redis with those of its URL or client; " +
	"once they fit, a probe finds out within a second and nothing has to be restarted"

// Changed implements [dispatch.NodeObserver]. The journal gets a line when the breaker opens and when it closes. It
// gets one more when two probes in a row meet another class of error: a Redis that died may come back with another
// password. So the last line is the cause, and a single probe that was lost does not hide it.
func (h *health) Changed(c dispatch.Change) {
	g, node := h.group, string(h.node.ID())
	event := StateEvent{Node: node, From: c.From.String(), To: c.To.String(), Err: c.Err}
	switch c.To {
	case failover.Open:
		event.Class = c.Class.String()
		if c.From == failover.Closed {
			h.doubtedUntil.Store(math.MaxInt64)
		}
		if h.isNews(c.Class, c.From == failover.Closed) {
			level := slog.LevelWarn
			about := []any{"decide", g.failModes()}
			if c.Class == failover.Misconfigured {
				level, about = slog.LevelError, append(about, "remedy", remedy)
			}
			h.logFailure(level, openings[c.Class], c.Class, c.Err, about...)
		}
	case failover.Closed:
		event.After = c.After
		h.doubtedUntil.CompareAndSwap(math.MaxInt64, int64(g.now()+settleTime))
		g.journal.line(slog.LevelInfo, "redis answers again", "node", node, "after", c.After)
		h.planDebtLine()
	}
	g.trace.state(event)
}

// logFailure writes a line about a failure of the node. The journal's goroutine looks for the cause, which may take a
// dial.
func (h *health) logFailure(level slog.Level, text string, class failover.Class, err error, about ...any) {
	j, node := h.group.journal, h.node.ID()
	j.after(0, true, func() {
		cause := []any{"node", string(node), "class", class.String(), "error", h.group.causeOf(node, err)}
		j.logger.Log(context.Background(), level, text, append(cause, about...)...)
	})
}

// maxDial bounds the dial that finds the cause of a timeout.
const maxDial = 100 * time.Millisecond

// causeOf returns why a node does not answer. If err is only a timeout, it dials the node once: go-redis dials again and
// again until a call's time is over, and hides that nobody listens, or that nobody knows the name. It must not run on a
// caller's goroutine.
func (g *Group) causeOf(node remote.Node, err error) error {
	if !errors.Is(err, failover.ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxDial)
	defer cancel()
	if cause := g.store.Dial(ctx, node); cause != nil && ctx.Err() == nil {
		return cause
	}
	return err
}

// isNews reports whether the log needs a line about a class of error: at the beginning of an outage, and when two
// failures in a row are of another class than the last line.
func (h *health) isNews(class failover.Class, begins bool) bool {
	if openings[class] == "" {
		return false // a probe that had nothing to send
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	news := begins || class == h.met && class != h.told
	if h.met = class; news {
		h.told = class
	}
	return news
}

// failModes returns what decides now, as in "fail-local: api, login; fail-closed: pay". It names at most five
// policies of each mode.
func (g *Group) failModes() string {
	const maxNames = 5
	all := g.limiters.present()
	var modes []string
	for m := range failModes {
		var names []string
		for _, l := range all {
			if l.Policy().FailMode == FailMode(m) {
				names = append(names, l.name)
			}
		}
		if len(names) > maxNames {
			names = append(slices.Clip(names[:maxNames]), "…")
		}
		if len(names) > 0 {
			modes = append(modes, failModes[m]+": "+strings.Join(names, ", "))
		}
	}
	return strings.Join(modes, "; ")
}

// settleTime is the time after an outage for which reported debts are added up into one line, and for which the node is
// found to have lost its data. Keys in use are asked for within their lease period.
const settleTime = 5 * time.Second

// doubted returns until when the node may have come back empty after an outage.
func (h *health) doubted() time.Duration { return time.Duration(h.doubtedUntil.Load()) }

// countReported counts a call that reported tokens admitted without Redis.
func (h *health) countReported(tokens int64) {
	if tokens > 0 {
		h.debtCalls.Add(1)
		h.reported.Add(tokens)
	}
}

// planDebtLine plans a line about the debts that are reported after an outage. Outages that follow each other closely
// share one line.
func (h *health) planDebtLine() {
	if h.debtLinePlanned.Swap(true) {
		return
	}
	debts, tokens := h.debtCalls.Load(), h.reported.Load()
	h.group.journal.after(settleTime, true, func() {
		h.debtLinePlanned.Store(false)
		if tokens := h.reported.Load() - tokens; tokens > 0 {
			h.group.journal.line(slog.LevelInfo, "what was admitted without redis was reported to it",
				"node", string(h.node.ID()), "tokens", tokens, "keys", h.debtCalls.Load()-debts)
		}
	})
}

const (
	// minSlow is the least number of overruns within a second that makes a line. Fewer are a hiccup.
	minSlow = 3

	// slowTime is how long there must be no overrun until the node counts as fast again.
	slowTime = 10 * time.Second
)

// countOverrun counts a decision that got no answer within Budget. The breaker does not see it if the answer comes
// within Timeout, so the journal says when such a time begins and ends.
func (h *health) countOverrun() {
	before := h.overruns.Add(1) - 1
	if h.slow.Load() || h.slow.Swap(true) {
		return
	}
	outages := h.node.Outages()
	h.group.journal.after(tallyTime, false, func() { h.reportSlow(before, outages) })
}

// isFar reports whether an answer of the node usually takes longer than Budget.
func (h *health) isFar() bool { return h.node.TypicalTrip() > h.group.options.Budget }

// noteFar says that a node is slow before any decision has met that. The first answer does not show it, because a
// connection was made for it.
func (h *health) noteFar() {
	if h.refreshes.Load() > 1 && h.isFar() && !h.slow.Swap(true) {
		h.reportSlow(h.overruns.Load(), h.node.Outages())
	}
}

// reportSlow logs that a node is slow, unless its breaker has opened. Each outage begins with a few overruns.
func (h *health) reportSlow(before, outages int64) {
	count := h.overruns.Load()
	if count-before < minSlow && !h.isFar() || h.node.Outages() != outages || h.node.State() != failover.Closed {
		h.slow.Store(false)
		return
	}
	trip, budget := h.node.RoundTrip(), h.group.options.Budget
	about := []any{"decide", h.group.failModes()}
	if h.isFar() {
		trip = h.node.TypicalTrip()
		about = append(about, "remedy", fmt.Sprintf("raise Budget above %v, or move closer to Redis", 4*trip.Round(time.Millisecond)))
	}
	h.group.journal.line(slog.LevelWarn,
		"redis answers later than Budget: the fail modes decide for keys without a lease",
		append([]any{"node", string(h.node.ID()), "round trip", trip, "budget", budget}, about...)...)
	h.group.journal.after(slowTime, false, func() { h.checkStillSlow(before, count, outages) })
}

// checkStillSlow logs when the node is fast again. Until then it checks every slowTime.
func (h *health) checkStillSlow(before, seen, outages int64) {
	count := h.overruns.Load()
	switch {
	case h.node.Outages() != outages: // an outage has lines of its own
		h.slow.Store(false)
	case count == seen && !h.isFar():
		h.slow.Store(false)
		h.group.journal.line(slog.LevelInfo, "redis answers within Budget again",
			"node", string(h.node.ID()), "decisions", count-before)
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

// maxMissedRefreshes is how many refreshes of presence must fail in a row before that is reported. A restart of Redis
// costs one, and so does an error that the breaker is about to report. A Redis that is far may need four before it has
// ever answered: each waits longer, because nobody knows yet how long making a connection takes.
const (
	maxMissedRefreshes = 2
	maxMissedAtFirst   = 4
)

// Present implements [dispatch.NodeObserver]. If a process is not counted, all fallbacks are too large. The breaker
// does not show that, because it may be closed, or this process idle.
func (h *health) Present(err error, probe bool) {
	g := h.group
	g.reportPart()
	if err == nil {
		g.fleetKnown.Store(true)
		h.missedRefreshes.Store(0)
		h.refreshes.Add(1)
		h.noteFar()
		if h.absenceReported.Swap(false) {
			g.trace.fault(FaultEvent{Fault: "presence", Node: string(h.node.ID())})
			g.journal.line(slog.LevelInfo, "redis counts this process again", "node", string(h.node.ID()))
		}
		return
	}
	if probe { // the breaker reports it
		return
	}
	class, most := failover.Classify(err), int64(maxMissedRefreshes)
	if class == failover.Unreachable && h.refreshes.Load() == 0 {
		most = maxMissedAtFirst
	}
	if h.missedRefreshes.Add(1) < most {
		return
	}
	level := slog.LevelWarn
	if class == failover.Misconfigured || class == failover.KeyFault {
		level = slog.LevelError // it does not heal by itself
	}
	if !h.absenceReported.Swap(true) {
		g.trace.fault(FaultEvent{Fault: "presence", Node: string(h.node.ID()), Err: err})
		h.logFailure(level, "redis does not count this process: fallbacks are too large while it does not answer", class, err)
	}
}
