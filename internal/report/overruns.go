package report

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
)

const (
	// minSlow is the least number of overruns within a second that makes a line. Fewer are a
	// hiccup.
	minSlow = 3

	// slowTime is how long there must be no overrun until the node counts as fast again.
	slowTime = 10 * time.Second
)

// Overruns counts the decisions that got no answer of a node within Budget. The breaker does not
// see them if the answer comes within Timeout, so the journal says when such a time begins and
// ends, and whether the node is late or this process. All methods may be called concurrently.
type Overruns struct {
	journal *Journal
	node    *dispatch.Node
	budget  time.Duration
	decide  func() string // what decides instead of the node

	count   atomic.Int64
	watched atomic.Bool // the journal has a check planned, and only one: it alone sets this to false

	mu     sync.Mutex
	lately inVain // since the last check
}

// inVain are decisions that got no answer in the time that they wait.
type inVain struct {
	all, late int64         // late are those whose caller woke up too late by more than half of its wait
	latest    time.Duration // by how much at most
	shortest  time.Duration // wait
}

// add adds one.
func (w *inVain) add(waited, late time.Duration) {
	if w.all++; w.all == 1 || waited < w.shortest {
		w.shortest = waited
	}
	if late > waited/2 {
		w.late++
	}
	w.latest = max(w.latest, late)
}

// byProcess reports whether this process was late, and not the node, whose longest answer took that
// long: most callers woke up late, so the processor was elsewhere, or the calls waited here for
// their turn.
func (w *inVain) byProcess(longest time.Duration) bool {
	return 2*w.late > w.all || w.all > 0 && longest <= w.shortest
}

// NewOverruns returns the overruns of a node. A line says that, instead of the node, what decide
// returns decides.
func NewOverruns(j *Journal, n *dispatch.Node, budget time.Duration, decide func() string) *Overruns {
	return &Overruns{journal: j, node: n, budget: budget, decide: decide}
}

// Total returns how many there were.
func (o *Overruns) Total() int64 { return o.count.Load() }

// Count counts a decision that waited so long, and whose caller woke up so late after that.
func (o *Overruns) Count(waited, late time.Duration) {
	before := o.count.Add(1) - 1
	begins := !o.watched.Load() && !o.watched.Swap(true)
	o.mu.Lock()
	if begins {
		o.lately = inVain{}
	}
	o.lately.add(waited, late)
	o.mu.Unlock()
	if begins {
		outages := o.node.Outages.Load()
		o.journal.after(tallyTime, false, func() { o.reportSlow(before, outages) })
	}
}

// takeInVain returns the decisions since the last check.
func (o *Overruns) takeInVain() inVain {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.lately
	o.lately = inVain{}
	return w
}

// NoteFar says that a node is slow before any decision has met that. It is called when the node has
// answered a report of presence. After an outage the typical answer is one of before it, so that
// one must have been late too.
func (o *Overruns) NoteFar() {
	if o.isFar() && o.node.LastTrip() > o.budget && !o.watched.Swap(true) {
		o.reportSlow(o.count.Load(), o.node.Outages.Load())
	}
}

// isFar reports whether an answer of the node usually takes longer than Budget.
func (o *Overruns) isFar() bool { return o.node.TypicalTrip() > o.budget }

// reportSlow logs that decisions are late, unless the node's breaker has opened. Each outage begins
// with a few overruns.
func (o *Overruns) reportSlow(before, outages int64) {
	count := o.count.Load()
	if count-before < minSlow && !o.isFar() || o.node.Outages.Load() != outages || o.node.State() != failover.Closed {
		o.watched.Store(false)
		return
	}
	own := o.line(o.takeInVain())
	o.journal.after(slowTime, false, func() { o.checkStillSlow(before, count, outages, own) })
}

// line logs whether Redis or this process is late, and reports whether it is this process.
func (o *Overruns) line(w inVain) (own bool) {
	longest := o.node.LongestTrip()
	about := []any{"node", string(o.node.ID()), "round trip", max(longest, o.node.RoundTrip())}
	text := "redis answers later than Budget: the fail modes decide for keys without a lease"
	var remedy []any
	switch own = !o.isFar() && w.byProcess(longest); {
	case own:
		text = "this process is later than Budget, and not redis: the fail modes decide for keys without a lease"
		about[len(about)-1] = longest
		about = append(about, "late", w.latest)
		remedy = []any{"remedy", "give the process more processor time; if it has enough, raise MaxInFlight"}
	case o.isFar():
		trip := o.node.TypicalTrip()
		about[len(about)-1] = trip
		remedy = []any{"remedy", fmt.Sprintf("raise Budget above %v, or move closer to Redis", 4*trip.Round(time.Millisecond))}
	}
	about = append(about, "budget", o.budget, "decide", o.decide())
	o.journal.Line(slog.LevelWarn, text, append(about, remedy...)...)
	return own
}

// checkStillSlow logs when decisions are in time again, and when another is late than before. Until
// then it checks every slowTime.
func (o *Overruns) checkStillSlow(before, seen, outages int64, own bool) {
	count := o.count.Load()
	switch {
	case o.node.Outages.Load() != outages: // an outage has lines of its own
		o.watched.Store(false)
	case count == seen && !o.isFar():
		o.watched.Store(false)
		text := "redis answers within Budget again"
		if own {
			text = "this process is within Budget again"
		}
		o.journal.Line(slog.LevelInfo, text, "node", string(o.node.ID()), "decisions", count-before)
	default:
		w := o.takeInVain()
		if w.all >= minSlow && (!o.isFar() && w.byProcess(o.node.LongestTrip())) != own {
			own = o.line(w)
		}
		o.journal.after(slowTime, false, func() { o.checkStillSlow(before, count, outages, own) })
	}
}
