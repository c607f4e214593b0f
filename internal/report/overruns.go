package report

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
)

const (
	// minSlow is the least number of overruns within a second that makes a line. Fewer are a hiccup.
	minSlow = 3

	// slowTime is how long there must be no overrun until the node counts as fast again.
	slowTime = 10 * time.Second
)

// Overruns counts the decisions that got no answer of a node within Budget. The breaker does not see them if the answer
// comes within Timeout, so the journal says when such a time begins and ends. All methods may be called concurrently.
type Overruns struct {
	journal *Journal
	node    *dispatch.Node
	budget  time.Duration
	decide  func() string // what decides instead of the node

	count   atomic.Int64
	watched atomic.Bool // the journal has a check planned, and only one: it alone sets this to false
}

// NewOverruns returns the overruns of a node. A line says that, instead of the node, what decide returns decides.
func NewOverruns(j *Journal, n *dispatch.Node, budget time.Duration, decide func() string) *Overruns {
	return &Overruns{journal: j, node: n, budget: budget, decide: decide}
}

// Total returns how many there were.
func (o *Overruns) Total() int64 { return o.count.Load() }

// Count counts one.
func (o *Overruns) Count() {
	before := o.count.Add(1) - 1
	if o.watched.Load() || o.watched.Swap(true) {
		return
	}
	outages := o.node.Outages()
	o.journal.after(tallyTime, false, func() { o.reportSlow(before, outages) })
}

// NoteFar says that a node is slow before any decision has met that. It is called when the node has answered a report of
// presence. After an outage the typical answer is one of before it, so that one must have been late too.
func (o *Overruns) NoteFar() {
	if o.isFar() && o.node.LastTrip() > o.budget && !o.watched.Swap(true) {
		o.reportSlow(o.count.Load(), o.node.Outages())
	}
}

// isFar reports whether an answer of the node usually takes longer than Budget.
func (o *Overruns) isFar() bool { return o.node.TypicalTrip() > o.budget }

// reportSlow logs that a node is slow, unless its breaker has opened. Each outage begins with a few overruns.
func (o *Overruns) reportSlow(before, outages int64) {
	count := o.count.Load()
	if count-before < minSlow && !o.isFar() || o.node.Outages() != outages || o.node.State() != failover.Closed {
		o.watched.Store(false)
		return
	}
	trip, about := o.node.RoundTrip(), []any{"decide", o.decide()}
	if o.isFar() {
		trip = o.node.TypicalTrip()
		about = append(about, "remedy", fmt.Sprintf("raise Budget above %v, or move closer to Redis", 4*trip.Round(time.Millisecond)))
	}
	o.journal.Line(slog.LevelWarn,
		"redis answers later than Budget: the fail modes decide for keys without a lease",
		append([]any{"node", string(o.node.ID()), "round trip", trip, "budget", o.budget}, about...)...)
	o.journal.after(slowTime, false, func() { o.checkStillSlow(before, count, outages) })
}

// checkStillSlow logs when the node is fast again. Until then it checks every slowTime.
func (o *Overruns) checkStillSlow(before, seen, outages int64) {
	count := o.count.Load()
	switch {
	case o.node.Outages() != outages: // an outage has lines of its own
		o.watched.Store(false)
	case count == seen && !o.isFar():
		o.watched.Store(false)
		o.journal.Line(slog.LevelInfo, "redis answers within Budget again",
			"node", string(o.node.ID()), "decisions", count-before)
	default:
		o.journal.after(slowTime, false, func() { o.checkStillSlow(before, count, outages) })
	}
}
