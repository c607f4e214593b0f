package tiered

import (
	"log/slog"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// polled implements [dispatch.Options].Polled.
func (g *Group) polled(now time.Duration, p lua.Poll, r remote.PollResult) {
	if r.Err == nil {
		g.core.Shares.Accept(now, p.Member, p.Seq, r.Reply)
		g.reportSize()
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
	}
	heard.Outsiders += g.limiters.outside(l)
	s := l.core.Settings()
	l.mu.Lock()
	a, agrees := &l.split.Agreement, &l.core.Standing.Agreed
	outsiders, was, redis, said := a.Outsiders(), agrees.Load(), a.Redis(), a.Uses()
	if !policyOf(s).Algorithm.has(lua.Window) {
		a.Hear(g.core.Now(), heard, leases(s))
	}
	agreed := a.Agreed()
	if agreed && !was {
		g.core.Shares.Clear(g.core.Now()) // others may just have used the whole limits
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
	case now.Outsiders() > 0 && outsiders == 0:
		g.journal.Line(slog.LevelWarn, "some processes do not split this policy's limit alike: standing shares are not used",
			"policy", l.core.Name, "processes", now.Outsiders())
	case agreed && !was && now.Differed():
		g.journal.Line(slog.LevelInfo, "all processes split this policy's limit alike: standing shares are used again",
			"policy", l.core.Name)
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

// reportSize reports policies whose standing shares hold less than one token, because there are too
// many processes. One that has just come gets what the rounding of the others left, and its part a
// moment later: that is no such case.
func (g *Group) reportSize() {
	state := g.core.Shares.State(g.core.Now())
	if state.Fraction == 0 || state.Quarantine {
		return
	}
	for _, l := range g.limiters.present() {
		shares := engine.SharesOf(l.core.Settings().Initial)
		if shares == nil || float64(shares.Size())*state.Fraction >= 1 || state.Members <= shares.Size() {
			continue
		}
		l.mu.Lock()
		first := !l.split.tooMany
		l.split.tooMany = true
		l.mu.Unlock()
		if first {
			g.journal.Line(slog.LevelWarn, "too many processes for this policy's standing shares: none holds a whole token, so "+
				"no key has that part of its limit", "policy", l.core.Name, "processes", state.Members, "most", shares.Size())
		}
	}
}
