package tiered

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Standing says whether the processes have standing shares of a policy's limits: see [Policy].Standing.
type Standing uint8

// The values of Standing.
const (
	StandingOff   Standing = iota // Redis has the whole limit
	StandingSplit                 // Redis has 7/8 of the limit; nobody uses the rest. For the deploy between Off and On
	StandingOn                    // Redis has 7/8 of the limit, and the processes share the rest
)

var standings = [...]string{StandingOff: "off", StandingSplit: "split", StandingOn: "on"}

// String returns "off", "split" or "on".
func (s Standing) String() string {
	if int(s) < len(standings) {
		return standings[s]
	}
	return fmt.Sprintf("standing %d", uint8(s))
}

// MarshalText returns what String does. An error means that s is none of the values.
func (s Standing) MarshalText() ([]byte, error) {
	if int(s) >= len(standings) {
		return nil, fmt.Errorf("tiered: Standing is %d: must be StandingOff, StandingSplit or StandingOn", uint8(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText reads what MarshalText returns: "off", "split" or "on".
func (s *Standing) UnmarshalText(text []byte) error {
	for i, name := range standings {
		if name == string(text) {
			*s = Standing(i)
			return nil
		}
	}
	return fmt.Errorf("tiered: Standing is %.80q: must be off, split or on", text)
}

// validateStanding reports what cannot have standing shares.
func (p Policy) validateStanding(bad func(field string, value any, rule string)) {
	switch {
	case p.Standing == StandingOff:
		return
	case int(p.Standing) >= len(standings):
		bad("Standing", p.Standing, "must be StandingOff, StandingSplit or StandingOn")
	case p.Algorithm != TokenBucket:
		bad("Standing", p.Standing, fmt.Sprintf("must be StandingOff with a %v: only a token bucket can be split", p.Algorithm))
	default:
		for i, l := range p.limits() {
			if l.rule() != local.ByLimit || l.validate("") != nil { // that is reported elsewhere
				return
			}
			name := "Limit"
			if i > 0 {
				name = fmt.Sprintf("Also[%d]", i-1)
			}
			if _, _, err := p.splitOne(l); err != nil {
				bad("Standing", p.Standing, fmt.Sprintf("must be StandingOff with %s %v: %v", name, l, err))
			}
		}
	}
}

// splitOne splits one of the policy's limits. rest is the part that Redis has.
func (p Policy) splitOne(l Limit) (rest Limit, share standing.Limit, err error) {
	split := standing.Split
	if len(p.Also) > 0 {
		split = standing.SplitInPeriod
	}
	share, r, err := split(standing.Rate{Burst: l.burst(), Tokens: l.Tokens, Per: l.Per})
	l.Burst, l.Tokens, l.Per = r.Burst, r.Tokens, r.Per
	return l, share, err
}

// split returns p with the parts of the limits that Redis has, and what standing shares have of each. It reports false
// if Redis has the whole limits. Every process decides that by the limits alone.
func (p Policy) split() (rest Policy, shares []standing.Limit, ok bool) {
	if p.Standing == StandingOff || p.Limit.rule() != local.ByLimit {
		return p, nil, false
	}
	var rests []Limit
	for _, l := range p.limits() {
		r, share, err := p.splitOne(l)
		if err != nil { // the limit of a single key
			return p, nil, false
		}
		rests, shares = append(rests, r), append(shares, share)
	}
	for i, l := range p.limits() {
		shares[i] = shares[i].Owing(max(p.MaxDebt, l.burst()))
	}
	p.Limit, p.Also, p.MaxDebt = rests[0], rests[1:], standing.RestOfDebt(p.MaxDebt)
	return p, shares, true
}

// splitMark is added to the name of a policy where a process announces that it splits the policy's limits, and how. So
// processes count those that do.
const splitMark = "\x00split 1/8"

// splitUse is what a Limiter knows of whether all processes split its limits. It is guarded by the Limiter's mutex.
type splitUse struct {
	outsiders int64 // processes that do not split them, as last counted

	// governedUntil is until when the whole limit of a process that does not split it may still govern in Redis: while it is
	// there, and for the time that Redis keeps it. Shares beside it would be more than the limit.
	governedUntil time.Duration

	tooMany bool // it was reported that no share holds a token
}

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
		g.trace.call(g.trace.hooks.Standing, Event{
			What: what, Policy: l.core.Name, Outside: outsiders, Shares: g.standingStats(),
		})
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

// sharesReport is what has been reported of the table of fractions.
type sharesReport struct {
	failures atomic.Int64 // polls in a row

	mu   sync.Mutex
	last StandingStats // without Left
}

// standingStats returns what this process knows of its standing shares.
func (g *Group) standingStats() StandingStats {
	return StandingStats(g.core.Shares.State(g.core.Now()))
}

// reportPart reports that this process' part of the standing shares has changed since the last call.
func (g *Group) reportPart() {
	if !g.core.HasShares.Load() {
		return
	}
	now, r := g.standingStats(), &g.sharesReport
	is := now
	is.Left = 0
	r.mu.Lock()
	was := r.last
	r.last = is
	r.mu.Unlock()
	if is != was {
		g.trace.call(g.trace.hooks.Standing, Event{What: "share", Shares: now})
	}
}

// reportTable reports that Redis refuses the table of fractions. Its refusal does not open the breaker, and a call that
// meets a slot on its way to another node is refused once.
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

// reportSize reports policies whose standing shares hold less than one token, because there are too many processes.
func (g *Group) reportSize() {
	state := g.core.Shares.State(g.core.Now())
	if state.Fraction == 0 || state.Quarantine {
		return
	}
	for _, l := range g.limiters.present() {
		shares := engine.SharesOf(l.core.Settings().Initial)
		if shares == nil || float64(shares.Size())*state.Fraction >= 1 {
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
