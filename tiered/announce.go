package tiered

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// limitsText returns a text that two policies of one name share if they admit the same for all
// keys. What PerKey returns is not known, only that there is one.
func (p Policy) limitsText() string {
	var limits []string
	for _, l := range p.Limit.Each() {
		if l.rule() == local.ByLimit {
			if l.Burst == l.Tokens { // the default
				l.Burst = 0
			}
			if precision := l.Precision; precision != 0 {
				if l.Precision = 0; l.precision() != precision {
					l.Precision = precision
				}
			}
		}
		limits = append(limits, l.String())
	}
	slices.Sort(limits) // which of them is Limit makes no difference
	text := strings.Join(limits, ", ")
	if p.Algorithm.has(lua.Window) {
		text += " by " + p.Algorithm.String()
	}
	if p.Calendar {
		text += " of the calendar"
	}
	if p.PerKey != nil {
		text += " or by key"
	}
	for _, name := range planNames(p.Plans) {
		text += fmt.Sprintf(", %q %v", name, p.Plans[name])
	}
	return text + p.zoneData()
}

// zoneData returns which data of the time zones of its limits this process has. If a machine has
// older data than others, its windows may end at other times.
func (p Policy) zoneData() (text string) {
	said := make(map[string]bool)
	note := func(l Limit) {
		if zone, data := l.Calendar.Zone, l.Calendar.Data(); data != "" && !said[zone] {
			said[zone] = true
			text += fmt.Sprintf(", zone data %s of %s", data, zone)
		}
	}
	note(p.Limit) // a calendar is never one of several limits
	for _, name := range planNames(p.Plans) {
		note(p.Plans[name])
	}
	return text
}

// announceOrder is the number of the first announcement among all that happens at one instant of a
// simulation.
const announceOrder = 1

// announced returns what this process announces, how long nodes are to remember the parts of
// windows that were used, and the version of its places. A policy has the place of its Limiter.
func (g *Group) announced() (a remote.Announcement, keep time.Duration, version int64) {
	// All policies of a simulated process are added at one instant. Otherwise the processors would
	// decide which of them the first announcement has.
	if !g.hasAnnounced.Swap(true) {
		g.core.Yield(announceOrder)
	}
	g.limiters.mu.RLock()
	defer g.limiters.mu.RUnlock()
	policies := make([]remote.AnnouncedPolicy, len(g.limiters.placed))
	for i, l := range g.limiters.placed {
		if l == nil { // the place is free, and counts for no policy
			policies[i] = remote.AnnouncedPolicy{Name: fmt.Sprintf("\x00free %d", i)}
			continue
		}
		policies[i] = l.announced()
		if longest := policyOf(l.core.Settings()).longestWindow(); longest > 0 {
			keep = max(keep, standing.Keep(longest))
		}
	}
	return remote.Announce(g.options.Service, policies), keep, g.limiters.version
}

// announced returns what this process announces of the policy.
func (l *Limiter) announced() remote.AnnouncedPolicy {
	p := policyOf(l.core.Settings())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limitsOf != p {
		l.limits, l.limitsOf = p.limitsText(), p
	}
	return remote.AnnouncedPolicy{
		Name: l.core.Name, Limits: l.limits, Shared: l.split.wants(p), Used: l.split.Uses(),
	}
}

// Counted implements [dispatch.NodeObserver].
func (h *health) Counted(announced remote.Announcement, c remote.Census, before []int64) {
	h.mu.Lock()
	h.said, h.census, h.countedAt, h.unknown = announced, c, h.group.core.Now(), nil
	h.mu.Unlock()
	g := h.group
	h.greet()
	g.learnTimes()
	for place := range c.Policies {
		l := g.limiters.at(place)
		if l == nil {
			continue
		}
		if after := h.node.Processes(place); after != before[place] {
			g.journal.Line(slog.LevelDebug, "another number of processes shares the limits",
				"node", string(h.node.ID()), "policy", l.core.Name, "from", before[place], "to", after)
		}
		h.reportOthers(l)
		was := slices.ContainsFunc(c.WasUsed, func(u lua.Used) bool { return u.Policy == int64(place) })
		if policyOf(l.core.Settings()).Standing > 0 || c.Policies[place].Used > 0 || was || l.redisPart() > 0 {
			l.agree()
		}
	}
}

// greet has the log say once that Redis answers, and what it is. That takes a second, in which
// policies are added and other processes are counted.
func (h *health) greet() {
	g := h.group
	if g.journal == nil || g.core.Simulated != nil || g.greeted.Swap(true) {
		return
	}
	g.journal.LineIn(time.Second, slog.LevelInfo, "redis answers", func() []any {
		var names []string
		for name := range g.allModes {
			names = append(names, name)
		}
		about := []any{"node", string(h.node.ID())}
		if server, err := g.store.Server(context.Background(), maxDial, h.node.ID()); err == nil && server != "" {
			about = append(about, "server", server)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(names) > 0 {
			about = append(about, "policies", firstOf(names))
		}
		return append(about, "processes", h.census.Processes)
	})
}

// Forgotten implements [dispatch.NodeObserver].
func (h *health) Forgotten(place int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unknown == nil {
		h.unknown = make(map[int]bool)
	}
	h.unknown[place] = true
}

// reportOthers logs that other processes have other limits for a policy.
func (h *health) reportOthers(l *Limiter) {
	g, node := h.group, string(h.node.ID())
	var services, here int64 // the most that a node counted
	for _, n := range g.core.Dispatch.Nodes() {
		c, _ := healthOf(n).counted(l.place())
		services, here = max(services, c.OtherServices), max(here, c.OtherLimits)
	}
	l.mu.Lock()
	o := &l.others
	o.services, o.here = services, here
	warn, tell := services > 0 && !o.warned, here > 0 && !o.told
	o.warned, o.told = o.warned || warn, here > 0
	l.mu.Unlock()
	if !warn && !tell {
		return
	}
	about := []any{
		"node", node, "policy", l.core.Name, "service", g.options.Service, "limits", l.Policy().limitsText(),
	}
	if warn {
		g.trace.fault(Event{What: "other limits", Node: node, Policy: l.core.Name})
		g.journal.Line(slog.LevelWarn, "another service has a policy of this name with other limits: both count the "+
			"same keys, so give one of them another name", append(about, "processes", services)...)
	}
	if tell {
		g.journal.Line(slog.LevelInfo, "processes of this service have other limits for this policy",
			append(about, "processes", here)...)
	}
}

// Present implements [dispatch.NodeObserver]. If a process is not counted, all fallbacks are too
// large. The breaker does not show that, because it may be closed, or this process idle.
func (h *health) Present(err error, probe bool) {
	g := h.group
	g.reportPart()
	if err == nil {
		g.core.FleetKnown.Store(true)
		g.core.Heard.Store(true)
		again := h.presence.Refreshed()
		if h.presence.Typical() {
			h.overruns.NoteFar()
		}
		if again {
			g.trace.fault(Event{What: "presence again", Node: string(h.node.ID())})
			g.journal.Line(slog.LevelInfo, "redis counts this process again", "node", string(h.node.ID()))
		}
		return
	}
	if probe { // the breaker reports it
		return
	}
	class, level := failover.Classify(err), slog.LevelWarn
	if class == failover.Misconfigured || class == failover.Refused || class == failover.KeyFault {
		level = slog.LevelError // it does not heal by itself
	}
	if h.presence.Missed(class == failover.Unreachable) {
		g.trace.fault(Event{What: "presence", Node: string(h.node.ID()), Err: err})
		g.journal.LineOf(level, "redis does not count this process: fallbacks are too large while it does not answer",
			func() []any { return h.cause(class, err) })
	}
}
