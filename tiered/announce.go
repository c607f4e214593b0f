package tiered

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// maxService is the length of the longest service name, in bytes: as of a policy.
const maxService = 64

// validService reports whether a service may be called so.
func validService(name string) bool {
	return len(name) <= maxService && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// programName returns the name of the running program, as a service that has not said its name.
func programName() string {
	if len(os.Args) == 0 { // whoever starts a program may leave it out
		return ""
	}
	return filepath.Base(os.Args[0])
}

// limitsText returns what two policies of one name must have in common to admit the same to all keys. What PerKey
// returns is not known, only that there is one.
func (p Policy) limitsText() string {
	var limits []string
	for _, l := range p.limits() {
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
	if p.Algorithm != TokenBucket {
		text += " by " + p.Algorithm.String()
	}
	if p.Calendar {
		text += " of the calendar"
	}
	if p.PerKey != nil {
		text += " or by key"
	}
	for _, name := range p.Plans.names() {
		text += fmt.Sprintf(", %q %v", name, p.Plans[name])
	}
	return text
}

// announceOrder is the number of the first announcement among all that happens at one instant of a simulation.
const announceOrder = 1

// announced returns what this process announces, and the version of its places. A policy has the place of its Limiter.
func (g *Group) announced() (a remote.Announcement, version int64) {
	// All policies of a simulated process are added at one instant. Otherwise the processors would decide which of them
	// the first announcement has.
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
		policies[i] = remote.AnnouncedPolicy{Name: l.core.Name, Limits: l.policy.Load().limitsText()}
		if i != l.place() { // its second place, which counts the processes that split its limits
			policies[i].Name += splitMark
		}
	}
	return remote.Announce(g.options.Service, policies), g.limiters.version
}

// otherLimits are the processes that have other limits for a policy, and what has been said about them.
type otherLimits struct {
	services, here int64 // processes of other services, and of this one: the most that a node counted
	warned         bool  // about other services: once
	told           bool  // about this service: once per change
}

// Counted implements [dispatch.NodeObserver].
func (h *health) Counted(c remote.Census, before []int64) {
	h.mu.Lock()
	h.census, h.unknown = c, nil
	h.mu.Unlock()
	g := h.group
	for place := range c.Policies {
		l := g.limiters.at(place)
		if l == nil {
			continue
		}
		if place != l.place() {
			l.checkSplit()
			continue
		}
		if after := h.node.Processes(place); after != before[place] {
			g.journal.Line(slog.LevelDebug, "another number of processes shares the limits",
				"node", string(h.node.ID()), "policy", l.core.Name, "from", before[place], "to", after)
		}
		h.reportOthers(l)
	}
}

// Forgotten implements [dispatch.NodeObserver].
func (h *health) Forgotten(place, places int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unknown == nil {
		h.unknown = make(map[int]bool)
	}
	for i := range places {
		h.unknown[place+i] = true
	}
}

// counted returns the last census of a policy by its place, if the node has been told of the policy.
func (h *health) counted(place int) (c remote.PolicyCensus, silent int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if place < 0 || place >= len(h.census.Policies) || h.unknown[place] {
		return c, 0, false
	}
	return h.census.Policies[place], h.census.Silent, true
}

// reportOthers logs that other processes have other limits for a policy.
func (h *health) reportOthers(l *Limiter) {
	g, node := h.group, string(h.node.ID())
	place := l.place()
	services, here := g.mostOthers(place)
	l.mu.Lock()
	o := &l.others
	o.services, o.here = services, here
	warn, tell := services > 0 && !o.warned, here > 0 && !o.told
	o.warned, o.told = o.warned || warn, here > 0
	l.mu.Unlock()
	about := []any{
		"node", node, "policy", l.core.Name, "service", g.options.Service, "limits", l.Policy().limitsText(),
	}
	if warn {
		g.trace.fault(Event{What: "other limits", Node: node, Policy: l.core.Name})
		g.journal.Line(slog.LevelWarn, "another service has a policy of this name with other limits, and both count "+
			"the same keys: give one of them another name", append(about, "processes", services)...)
	}
	if tell {
		g.journal.Line(slog.LevelInfo, "processes of this service have other limits for this policy",
			append(about, "processes", here)...)
	}
}

// mostOthers returns the most processes that a node counted that have other limits for a policy: of other services, and
// of this one.
func (g *Group) mostOthers(place int) (services, here int64) {
	for _, n := range g.core.Dispatch.Nodes() {
		c, _, _ := healthOf(n).counted(place)
		services, here = max(services, c.OtherServices), max(here, c.OtherLimits)
	}
	return services, here
}
