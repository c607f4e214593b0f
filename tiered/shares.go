package tiered

import (
	"log/slog"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// splitMark is added to the name of a policy where a process announces that it splits the policy's
// limits, and how. So processes count those that do.
const splitMark = "\x00split 1/8"

// polled implements [dispatch.Options].Polled.
func (g *Group) polled(now time.Duration, p lua.Poll, r remote.PollResult) {
	if r.Err == nil {
		g.core.Shares.Accept(now, p.Member, p.Seq, r.Reply)
		g.reportSize()
	}
	g.sharesReport.reportTable(g, r.Err)
}

// checkSplit finds out whether all processes with this policy split its limits.
func (l *Limiter) checkSplit() {
	if l.Policy().Standing != StandingOn {
		return
	}
	g := l.group
	nodes, heard, outsiders := 0, 0, int64(0)
	for _, n := range g.core.Dispatch.Nodes() {
		if n.ID() == "" { // it counts nobody: its calls wait for their node to be found
			continue
		}
		nodes++
		h := healthOf(n)
		all, silent, ok := h.counted(l.place())
		split, _, told := h.counted(l.place() + 1)
		if ok && told {
			heard++
			outsiders = max(outsiders, all.Processes-split.Processes+silent)
		}
	}
	outsiders += g.limiters.unsplit(l)
	l.mu.Lock()
	u, agrees := &l.split, &l.core.Standing.Agreed
	before, was := u.outsiders, agrees.Load()
	if u.outsiders = outsiders; outsiders > 0 || before > 0 { // one that was counted may have used its limit until now
		u.governedUntil = g.core.Now() + lua.TermsHold + max(l.core.Settings().Initial.MaxTTL(), 2*dispatch.MaxTimeout)
	}
	// A node that is new, as after a failover, changes nothing until it is heard.
	agreed := outsiders == 0 && g.core.Now() >= u.governedUntil && heard > 0 && (was || heard == nodes)
	if agreed && !was {
		g.core.Shares.Clear(g.core.Now()) // others may just have used the whole limits
	}
	again := u.governedUntil > 0
	agrees.Store(agreed)
	l.mu.Unlock()
	if agreed != was || outsiders != before {
		what := "shares unused"
		if agreed {
			what = "shares used"
		}
		e := shareEvent(what, g.core.Shares.State(g.core.Now()))
		e.Policy, e.Outside = l.core.Name, outsiders
		g.trace.call(g.trace.hooks.Standing, e)
	}
	switch {
	case outsiders > 0 && before == 0:
		g.journal.Line(slog.LevelWarn, "some processes do not split this policy's limit: standing shares are not used",
			"policy", l.core.Name, "processes", outsiders)
	case agreed && !was && again:
		g.journal.Line(slog.LevelInfo, "all processes split this policy's limit: standing shares are used again",
			"policy", l.core.Name)
	}
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
				"each key has 7/8 of its limit", "policy", l.core.Name, "processes", state.Members, "most", shares.Size())
		}
	}
}
