package tiered

import (
	"log/slog"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// polled implements [dispatch.Options].Polled.
func (g *Group) polled(now time.Duration, p lua.Poll, r remote.PollResult) {
	if r.Err == nil {
		g.core.Shares.Accept(now, p.Member, p.Seq, r.Reply)
		g.fit()
	}
	g.sharesReport.reportTable(g, r.Err)
}

// agree learns from the last reports how the processes split this policy's limits.
func (l *Limiter) agree() {
	g := l.group
	var heard standing.Heard
	for _, n := range g.core.Dispatch.Nodes() {
		if n.ID() == "" { // it counts nobody: its calls wait for their node to be found
			continue
		}
		heard.Nodes++
		h := healthOf(n)
		c, ok := h.counted(l.place())
		if !ok {
			continue
		}
		shared, used := h.shares(l.place())
		if heard.Told++; heard.Told == 1 || used < heard.Said {
			heard.Said = used
		}
		heard.Wanted, heard.Used = max(heard.Wanted, shared), max(heard.Used, c.Used)
		heard.Outsiders = max(heard.Outsiders, c.Processes-c.SharedAlike)
		said := int64(0)
		var heardAt time.Duration
		if heard.WasUsed, said, heardAt = h.wasUsed(l.place(), heard.WasUsed); heard.At == 0 || said < heard.At {
			heard.At, heard.HeardAt = said, heardAt
		}
	}
	heard.Outsiders += g.limiters.outside(l)
	s, at := l.core.Settings(), g.core.Now()
	l.mu.Lock()
	a, agrees := &l.split.Agreement, &l.core.Standing.Agreed
	outsiders, was, redis, said := a.Outsiders(), agrees.Load(), a.Redis(), a.Uses()
	if policyOf(s).splits() {
		a.Hear(at, heard, leases(s))
	}
	l.publishParts()
	agreed := a.Agreed()
	warn := a.Outsiders() > 0 && !l.split.warned && !l.split.crowd.changes(at)
	settled := agreed && l.split.warned
	l.split.warned = (l.split.warned || warn) && !settled
	if agreed && !was && !policyOf(s).Algorithm.has(lua.Window) {
		g.core.Shares.Clear(at) // others may just have used the whole limits
	}
	agrees.Store(agreed)
	now := *a
	l.mu.Unlock()
	if now.Redis() != redis {
		l.splitAnew()
	}
	if now.Uses() > said {
		g.core.Dispatch.Refresh() // the shares are used once that is told
	}
	if agreed != was || now.Outsiders() != outsiders {
		what := "shares unused"
		if agreed {
			what = "shares used"
		}
		e := shareEvent(what, g.core.Shares.State(g.core.Now()))
		e.Policy, e.Outside = l.core.Name, now.Outsiders()
		g.trace.call(g.trace.hooks.Standing, e)
	}
	switch {
	case warn:
		g.journal.Line(slog.LevelWarn, "some processes do not split this policy's limit alike: standing shares are not used",
			"policy", l.core.Name, "processes", now.Outsiders())
	case settled:
		g.journal.Line(slog.LevelInfo, "all processes split this policy's limit alike: standing shares are used again",
			"policy", l.core.Name)
	}
}

// learnTimes notes what the clocks of all nodes show, for the windows of shares.
func (g *Group) learnTimes() {
	if !g.core.HasShares.Load() {
		return
	}
	now, from, to := g.core.Now(), int64(0), int64(0)
	for _, n := range g.core.Dispatch.Nodes() {
		if n.ID() == "" {
			continue
		}
		f, t, ok := n.ServerTimes(now)
		if !ok {
			return // the next report of that node is soon
		}
		if from == 0 || f < from {
			from = f
		}
		to = max(to, t)
	}
	if from > 0 {
		g.core.Shares.Clock(now, from, to)
	}
}

// splitAnew gives the policy's keys the part of Redis that they have now.
func (l *Limiter) splitAnew() {
	l.setMu.Lock()
	defer l.setMu.Unlock()
	if l.removed.Load() {
		return
	}
	l.set(l.Policy())
	l.group.core.ApplySettings(map[*engine.Limiter]bool{&l.core: true})
}

// shareEvent is what the Standing hook is told.
func shareEvent(what string, now standing.State) Event {
	return Event{What: what, Fraction: now.Fraction, Members: now.Members, Quarantine: now.Quarantine}
}

// reportPart reports that this process' part of the standing shares has changed since the last
// call.
func (g *Group) reportPart() {
	if !g.core.HasShares.Load() {
		return
	}
	now, r := g.core.Shares.State(g.core.Now()), &g.sharesReport
	is := now
	is.Left = 0
	r.mu.Lock()
	was := r.last
	r.last = is
	r.mu.Unlock()
	if is != was {
		g.trace.call(g.trace.hooks.Standing, shareEvent("share", now))
	}
}

// reportTable reports that Redis refuses the table of fractions. Its refusal does not open the
// breaker, and a call that meets a slot on its way to another node is refused once.
func (r *sharesReport) reportTable(g *Group, err error) {
	if err == nil {
		r.failures.Store(0)
		return
	}
	if r.failures.Add(1) == report.MaxMissed {
		g.journal.Line(slog.LevelError, "redis refuses the table of standing shares: without it they end within a minute",
			"error", err)
	}
}

// fit gives up the shares of policies while there are so many processes that none of them holds a
// whole token. Nobody could use that part of a limit then, so Redis has the whole limits again.
// Half as many processes come back to it. For the others that is as if the policy had another
// Standing.
func (g *Group) fit() {
	now := g.core.Now()
	members := g.core.Shares.State(now).Members
	for _, l := range g.limiters.present() {
		p := policyOf(l.core.Settings())
		if p.Standing == 0 || members == 0 {
			continue
		}
		most := l.mostSharing(p)
		if most == 0 { // no limit is known yet
			continue
		}
		l.mu.Lock()
		changed, is := l.split.crowd.count(now, members, most), l.split.crowd.is
		l.mu.Unlock()
		if !changed {
			continue
		}
		l.splitAnew()
		if is {
			g.journal.Line(slog.LevelWarn, "too many processes for this policy's standing shares: none would hold a whole token, so "+
				"its limits are whole again", "policy", l.core.Name, "processes", members, "most", most)
		} else {
			g.journal.Line(slog.LevelInfo, "few enough processes for this policy's standing shares again",
				"policy", l.core.Name, "processes", members, "most", most)
		}
	}
}

// mostSharing returns the most processes of which each can have a whole token of a key: as many as
// all shares of the policy's largest limit have tokens. Parts are rounded down, so mostly it is one
// less.
func (l *Limiter) mostSharing(p *Policy) (most int64) {
	of := func(limit Limit) {
		if limit.rule() == local.ByLimit {
			most = max(most, standing.Tokens(limit.burst(), int64(p.eighths())))
		}
	}
	for _, plan := range p.Plans {
		of(plan)
	}
	for limit := range l.core.Settings().Shares() { // Limit, unless PerKey is set; those of keys, and of requests
		of(Limit(limit))
	}
	if most > 1 && lua.Pool%most > 0 {
		most--
	}
	return most
}
