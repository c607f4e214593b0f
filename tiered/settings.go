package tiered

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// newSettings returns what the engine goes by while the policy is p.
func (l *Limiter) newSettings(p *Policy) *engine.Settings {
	redis := l.redisPart()
	var former map[engine.Limit]standing.Limits
	if s := l.core.Settings(); s != nil {
		former = s.Shares()
	}
	s := &engine.Settings{
		Limit: engine.Limit(p.Limit), Windows: p.Algorithm.has(lua.Window),
		CheckKey: func(limit engine.Limit) error { return p.CheckLimit(Limit(limit)) },
		Policy:   p,
	}
	s.Resolve = func(limit engine.Limit, has standing.Limits) *local.Policy {
		if has == nil {
			has = former[limit]
		}
		return l.resolve(s, *p, redis, Limit(limit), has)
	}
	if p.PerKey == nil {
		s.Initial = s.PolicyOf(s.Limit)
	} else {
		s.KeyLimit = func(key string) engine.Limit { return engine.Limit(l.limitOf(p, key)) }
		s.Initial = s.Resolve(s.Limit, nil)
		s.Initial.Rule, s.Initial.Unset = local.Unresolved, true // the limit may be that of another key
	}
	if l.group.trace.hooks.Decision != nil {
		s.Mode |= engine.ModeTraced
	}
	if p.Shadow {
		s.Mode |= engine.ModeShadow
	}
	if p.Standing > 0 {
		s.Mode |= engine.ModeStanding
	}
	if s.Initial.Rule == local.Unlimited {
		s.Mode |= engine.ModeUnlimited
	}
	return s
}

// resolve makes the local policy of a limit. former is what standing shares have of the limit
// already, or had under the settings before; nil if they have nothing. redis is how many eighths
// this process leaves to shares when it takes from Redis.
func (l *Limiter) resolve(s *engine.Settings, p Policy, redis int, limit Limit, former standing.Limits) *local.Policy {
	o := &l.group.options
	lp := &local.Policy{
		Number: l.core.Number, Rule: limit.rule(), Rules: new(local.Rules),
		Size: max(p.Lease.Size, 0), Period: p.Lease.Period,
		FailMode: p.FailMode, Budget: o.Budget, Timeout: o.Timeout, Uniform: o.Random,
		Paid: &l.core.Paid, NearLimit: &l.core.NearLimit, Spent: l.group.core.Spent(),
	}
	if lp.Period == 0 {
		lp.Period = defaults.Period
	}
	owner := engine.NewResolved(&l.core, s, engine.Limit(limit))
	switch lp.Unset = lp.Rule != local.ByLimit; {
	case !lp.Unset:
		p.Limit = limit
	case !p.Limit.several(): // any numbers will do: no call uses them, and a key that had a limit keeps its own
		p.Limit = PerSecond(1)
	}
	whole := p.Limit.burst()
	lp.Owner = owner
	if rest, parts, ok := p.split(redis); ok && lp.Rule == local.ByLimit {
		parent := *lp
		parent.Cap, parent.Tokens, parent.Per = p.fallbackNumbers()
		parent.NanosPerToken, parent.Call = p.Limit.nanosPerToken(), p.call()
		lp.Parent = &parent
		if p = rest; p.eighths() == redis {
			if owner.Shares = former; !owner.Shares.Are(parts) {
				owner.Shares = l.group.core.Shares.Begin(l.group.core.Now(), parts...)
			}
		}
	}
	lp.Cap, lp.Tokens, lp.Per = p.fallbackNumbers()
	lp.NanosPerToken = p.Limit.nanosPerToken()
	if p.Algorithm.has(lua.Phased) && p.splits() {
		lp.CapOf = l.capOf(whole)
	}
	if p.Limit.several() {
		for _, one := range p.Limit.Each() {
			lp.Each = append(lp.Each, local.Numbers{Cap: one.burst(), Tokens: one.Tokens, Per: one.longest()})
		}
	}
	lp.Window = p.window()
	lp.ShortWindow = p.Algorithm.has(lua.Edges) && p.Limit.longest() < 2*o.Timeout
	if lp.Size == 0 {
		lp.MinBurst = leastBurst
	}
	lp.NoLease = !p.leased(lp)
	lp.Unleased = lp.NoLease && p.Algorithm.has(lua.Blocks)
	lp.Call = p.call()
	lp.At = p.Limit.windowAt()
	owner.Retention = p.retention()
	return lp
}

// publishParts tells the engine how windows are split. l.mu is held.
func (l *Limiter) publishParts() {
	parts := l.split.Parts()
	l.core.Standing.Parts.Store(&parts)
}

// capOf returns how many tokens of a limit Redis has in a window: see [standing.Parts].
func (l *Limiter) capOf(whole int64) func(now time.Duration, server, begin int64) (tokens int64, alone bool) {
	return func(now time.Duration, server, begin int64) (tokens int64, alone bool) {
		eighths, alone := l.core.Standing.Parts.Load().Of(standing.Moment{Now: now, Server: server}, begin)
		return whole - standing.Tokens(whole, int64(eighths)), alone
	}
}

// set makes p the policy of new buckets.
func (l *Limiter) set(p Policy) {
	hold := 2 * dispatch.MaxTimeout
	var known []string // the log has them
	if s := l.core.Settings(); s != nil {
		hold, known = leases(s), policyOf(s).Warnings()
	}
	l.mu.Lock()
	l.split.Want(l.group.core.Now(), l.split.wants(&p), hold, p.longestWindow())
	l.core.Standing.Agreed.Store(l.split.Agreed())
	l.publishParts()
	l.mu.Unlock()
	if p.Standing > 0 {
		l.group.hasShares(p.Algorithm.has(lua.Window))
	}
	l.core.Set(l.newSettings(&p))
	l.revision.Add(1) // after it: who has seen the new number gets the new policy
	for _, what := range p.Warnings() {
		if slices.Contains(known, what) {
			continue
		}
		l.group.journal.Line(slog.LevelWarn, "a policy is probably not what was meant", "policy", p.Name, "what", what)
	}
}

// leases bounds how long a process that splits otherwise, and calls no more, may still hold a
// lease.
func leases(s *engine.Settings) time.Duration {
	return max(s.Initial.MaxTTL(), 2*dispatch.MaxTimeout)
}

// hasShares makes room for standing shares, of windows or of buckets. A share decides over keys of
// all nodes.
func (g *Group) hasShares(windows bool) {
	bits := standing.PlaceBits
	if g.core.Simulated != nil {
		bits -= 4 // there are many processes, and few keys
	}
	if windows {
		g.core.Shares.OpenWindows(bits)
	} else {
		g.core.Shares.Open(bits)
	}
	g.core.HasShares.Store(true)
	g.core.Dispatch.UseAllNodes()
}

// Policy returns the current policy: see [Limiter.SetPolicy]. It copies Plans, which may be a
// thousand: who needs the policy at each request keeps it until [Limiter.Revision] changes.
func (l *Limiter) Policy() Policy {
	if l.isZero() {
		return Policy{}
	}
	return policyOf(l.core.Settings()).clone()
}

// Revision returns a number that grows with each change of the policy: 0 for a nil or zero Limiter.
// Ask for it before [Limiter.Policy], so that a change between the two is seen the next time. It is
// one atomic load.
func (l *Limiter) Revision() int64 {
	if l.isZero() {
		return 0
	}
	return l.revision.Load()
}

// SetPolicy changes the policy for all keys at once. It cannot change Name, Algorithm, Calendar and
// how many limits Limit is, nor the Per of a FixedWindow, of a SlidingLog, or of a TokenBucket with
// several limits, because Redis has counted by them. If p is invalid it returns an error and changes nothing. It does not
// wait for Redis, but walks all keys of the Group: about 60 ms for 100 000 keys.
//
// If the limit is raised, a key keeps the tokens that it had, and refills to the new burst. If it
// is lowered, leases are returned, and a TokenBucket goes on by the old limit until no process has
// used that for ten seconds: while processes differ, as during a deploy, a key can use the largest.
// Blocked holds at once, and with PerKey a key's new limit from its next use on. See
// docs/several-limits.md.
func (l *Limiter) SetPolicy(p Policy) error {
	if l.isZero() {
		return errZeroLimiter
	}
	p = p.clone()
	l.setMu.Lock()
	defer l.setMu.Unlock()
	if err := errors.Join(p.Validate(), p.checkReplaces(l.Policy())); err != nil {
		return err
	}
	l.set(p)
	l.group.core.ApplySettings(map[*engine.Limiter]bool{&l.core: true})
	return nil
}

// SetLimit changes the policy's Limit alone: see [Limiter.SetPolicy].
func (l *Limiter) SetLimit(limit Limit) error {
	p := l.Policy()
	p.Limit = limit
	return l.SetPolicy(p)
}

// Refresh makes the next use of key call Policy.PerKey again.
func (l *Limiter) Refresh(key string) {
	if l.isZero() {
		return
	}
	l.core.Refresh(key)
}
