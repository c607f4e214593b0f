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
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// health is the Group's observer of one node. It makes the journal's lines and the Trace's events
// of what happens there, and keeps for Stats what the dispatcher does not know.
type health struct {
	group *Group
	node  *dispatch.Node

	overruns     *report.Overruns
	debts        *report.Debts
	outages      *report.Outages
	presence     report.Presence
	stateLosses  atomic.Int64 // replies that showed that Redis had lost a bucket
	doubtedUntil atomic.Int64 // ns since the base: until then the node may have come back empty after an outage

	mu        sync.Mutex
	said      remote.Announcement // in the last report that was answered
	census    remote.Census       // the answer
	countedAt time.Duration       // when it came
	unknown   map[int]bool        // the places of which it says nothing, because other policies have them since
}

// observe returns the Group's observer of a node.
func (g *Group) observe(n *dispatch.Node) dispatch.NodeObserver {
	return &health{
		group: g, node: n,
		overruns: report.NewOverruns(g.journal, n, g.options.Budget, g.failModes),
		debts:    report.NewDebts(g.journal, string(n.ID())), outages: report.NewOutages(g.journal, string(n.ID())),
	}
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

// Changed implements [dispatch.NodeObserver]. The journal gets a line when the breaker opens and
// when it closes, and one more when the cause is another one, or one a minute while it comes and
// goes: see [report.Outages]. A class without a line is that of a probe that had nothing to send.
func (h *health) Changed(c dispatch.Change) {
	g, node := h.group, string(h.node.ID())
	event := Event{Node: node, From: c.From.String(), What: c.To.String(), Err: c.Err}
	switch c.To {
	case failover.Open:
		event.Class = c.Class.String()
		if c.From == failover.Closed {
			h.doubtedUntil.Store(math.MaxInt64)
		}
		level, remedies := slog.LevelWarn, []any(nil)
		if c.Class == failover.Misconfigured {
			level, remedies = slog.LevelError, []any{"remedy", remedy}
		}
		about := func() []any { return h.cause(c.Class, c.Err, append([]any{"decide", g.failModes()}, remedies...)...) }
		if openings[c.Class] != "" && h.outages.Failed(c.Class, c.From == failover.Closed, about) {
			g.journal.LineOf(level, openings[c.Class], about)
		}
	case failover.Closed:
		event.Time = c.After
		h.doubtedUntil.CompareAndSwap(math.MaxInt64, int64(g.core.Now()+doubtTime))
		if h.outages.Ended() {
			g.journal.Line(slog.LevelInfo, "redis answers again", "node", node, "after", c.After)
		}
		h.debts.PlanLine()
	}
	g.trace.state(event)
}

// Refused implements [dispatch.NodeObserver]. The breaker does not open, so the journal gets a line
// now and then.
func (h *health) Refused(err error) {
	h.group.journal.TallyOf("refused calls "+string(h.node.ID()), 1, slog.LevelError,
		"redis refuses calls: the fail modes decide for their keys until somebody changes that",
		func() []any { return h.cause(failover.Refused, withRule(err), "decide", h.group.failModes()) })
}

// cause returns what a line says of a failure of the node. The journal's goroutine asks for it,
// because it may take a dial.
func (h *health) cause(class failover.Class, err error, about ...any) []any {
	node := h.node.ID()
	return append([]any{"node", string(node), "class", class.String(), "error", h.group.causeOf(node, err)}, about...)
}

// maxDial bounds the dial that finds the cause of a timeout.
const maxDial = 100 * time.Millisecond

// causeOf returns why a node does not answer. If err is only a timeout, it dials the node once:
// go-redis dials again and again until a call's time is over, and hides that nobody listens, or
// that nobody knows the name. It must not run on a caller's goroutine.
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

// rulesOfUsers say what must be corrected if Redis refuses a user, by how its reply begins.
var rulesOfUsers = map[string]string{
	"NOAUTH ":    "the client must have a password, as in redis://user:password@host",
	"WRONGPASS ": "the client's user and password must be those of Redis",
	"NOPERM ":    "the client's user must have the rights that docs/redis.md lists",
}

// withRule adds what must be corrected to the error of a node that refuses this user.
func withRule(err error) error {
	for reply, rule := range rulesOfUsers {
		if strings.Contains(err.Error(), reply) {
			return fmt.Errorf("%w (%s)", err, rule)
		}
	}
	return err
}

// firstOf names at most five of the names.
func firstOf(names []string) string {
	const maxNames = 5
	if len(names) > maxNames {
		names = append(slices.Clip(names[:maxNames]), "…")
	}
	return strings.Join(names, ", ")
}

// failModes returns what decides now, as in "fail-local: api, login; fail-closed: pay".
func (g *Group) failModes() string {
	var by [len(failModes)][]string
	for name, m := range g.allModes {
		by[m] = append(by[m], name)
	}
	var modes []string
	for m, names := range by {
		if len(names) > 0 {
			modes = append(modes, failModes[m]+": "+firstOf(names))
		}
	}
	return strings.Join(modes, "; ")
}

// allModes yields the name and the fail mode of each policy, those of places among them.
func (g *Group) allModes(yield func(name string, m FailMode) bool) {
	for _, l := range g.limiters.present() {
		if !yield(l.core.Name, policyOf(l.core.Settings()).FailMode) {
			return
		}
	}
	g.guestsMu.Lock()
	guests := slices.Clone(g.guests)
	g.guestsMu.Unlock()
	for _, guest := range guests {
		if !yield(guest.FailMode()) {
			return
		}
	}
}

// doubtTime is the time after an outage in which the node is found to have lost its data. Keys in
// use are asked for within their lease period.
const doubtTime = 5 * time.Second

// Doubted implements [engine.Node].
func (h *health) Doubted() time.Duration { return time.Duration(h.doubtedUntil.Load()) }

// KeptData implements [engine.Node].
func (h *health) KeptData() { h.doubtedUntil.Store(0) }

// Overran implements [engine.Node].
func (h *health) Overran(waited, late time.Duration) { h.overruns.Count(waited, late) }

// Settled implements [engine.Node].
func (h *health) Settled(tokens int64) { h.debts.Count(tokens) }

// stateLost reports that Redis has lost a bucket. Many losses, as after a flush, make one line in
// the log.
func (h *health) stateLost(b *engine.Bucket) {
	g, node := h.group, string(h.node.ID())
	h.stateLosses.Add(1)
	g.trace.fault(Event{What: "state loss", Node: node, Policy: b.Limiter().Name, Key: b.Key()})
	g.journal.Tally("state loss "+node, 1, slog.LevelWarn,
		"redis lost buckets, or what it had written last: each may admit a burst more", "node", node)
}

// Stepped implements [dispatch.NodeObserver].
func (h *health) Stepped(by time.Duration) {
	g, node := h.group, string(h.node.ID())
	g.trace.fault(Event{What: "clock step", Node: node, Time: by})
	g.journal.Tally("clock "+node, 1, slog.LevelWarn, "the clock of redis was set", "node", node, "by", by)
}

// counted returns the last census of a policy by its place, if the node has been told of the
// policy.
func (h *health) counted(place int) (c remote.PolicyCensus, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if place < 0 || place >= len(h.census.Policies) || h.unknown[place] {
		return c, false
	}
	return h.census.Policies[place], true
}

// wasUsed appends the parts of the policy in a place that the node said were in use, and returns
// when it said so, by its clock and by the process'.
func (h *health) wasUsed(place int, all []lua.Used) (_ []lua.Used, now int64, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range h.census.WasUsed {
		if u.Policy == int64(place) {
			all = append(all, u)
		}
	}
	return all, h.census.Now, h.countedAt
}

// shares returns what the last report that was answered said of the shares of the policy in a
// place.
func (h *health) shares(place int) (shared, used int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.said.Shares(place)
}
