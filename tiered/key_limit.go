package tiered

import (
	"log/slog"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// A key has the limit of its policy, or the one that PerKey returns. A request may carry another
// limit, or have a plan that names one.

// limitOf returns the limit of a key: its own or, if it has none, Policy.Limit.
func (l *Limiter) limitOf(p *Policy, key string) Limit {
	if limit, own := l.perKey(p, key); own {
		return limit
	}
	return p.Limit
}

// perKey calls PerKey. A key has no limit of its own if the result is invalid, or if PerKey panics.
func (l *Limiter) perKey(p *Policy, key string) (limit Limit, own bool) {
	defer func() {
		if v := recover(); v != nil {
			l.perKeyFault("panicked: " + report.PanicOf(v))
			own = false
		}
	}()
	if limit = p.PerKey(key); limit == (Limit{}) {
		return limit, false
	}
	if err := p.CheckLimit(limit); err != nil {
		l.perKeyFault("returned a limit that the policy cannot have: " + err.Error())
		return limit, false
	}
	return limit, true
}

// perKeyFault counts a failure of PerKey, and logs the first one.
func (l *Limiter) perKeyFault(why string) {
	if l.core.CountKeyFault() {
		l.group.journal.Line(slog.LevelError, "PerKey gave no limit for a key: the policy's own decides", "policy",
			l.core.Name, "why", why)
	}
}

// WithLimit returns u with a limit that the request carries, as from a contract, instead of that of
// its plan, of [Policy].PerKey, or the policy's own. It may be [Unlimited] or [Blocked]; the zero
// Limit changes nothing.
//
// A request without one goes by the policy's own or that of PerKey, which is asked each time once
// requests have carried limits. If requests for one key have different limits, in one process or in
// several, the key can use the largest burst and the largest rate, each by itself, until no request
// has had it for ten seconds. A request may cost no more than the burst that it has, and its
// Decision has that Burst.
//
// A limit that the policy cannot have is ignored, because a request must not fail for it.
// PolicyStats.Faults counts it, and the first one is logged with field, value and rule.
func (u Use) WithLimit(limit Limit) Use {
	if limit == (Limit{}) {
		return u
	}
	u.own()
	for i := range u.n {
		p := u.at(i)
		if p.limiter == nil {
			continue
		}
		if carried := p.limiter.carriedLimit(p.limiter.core.Settings(), limit); carried != nil {
			p.limit, p.agreed, p.unknown = carried, true, false
		}
	}
	return u
}

// carriedLimit resolves a limit that a request carries. It returns nil if the policy cannot have
// it.
func (l *Limiter) carriedLimit(s *engine.Settings, limit Limit) *engine.Resolved {
	carried, err := l.core.Carry(s, engine.Limit(limit))
	if err != nil && l.core.CountKeyFault() {
		l.group.journal.Line(slog.LevelError, "a request carried a limit that the policy cannot have: it is ignored",
			"policy", l.core.Name, "why", err.Error())
	}
	return carried
}

// WithPlan returns u with the limit of one of [Policy].Plans, which holds as by [Use.WithLimit],
// unless the request carries a limit or PerKey gives the key one. In a use of several keys each
// policy goes by its plan of that name or, if it has none, by its own limit:
//
//	tiered.All(perMinute.For(user), perMonth.For(user)).WithPlan(plan).Allow(ctx)
//
// A request without a plan, with the plan "", or with one that the policy does not have, goes by
// the policy's own limit; the last are counted and logged once, if the policy has plans. The limit
// is looked up at once, so make the Use for each request: it does not follow changes of the policy.
func (u Use) WithPlan(name string) Use {
	u.own()
	for i := range u.n {
		if p := u.at(i); p.limiter != nil && !p.agreed {
			p.limit, p.unknown = p.limiter.planLimit(name, p.key)
		}
	}
	return u
}

// planLimit returns the limit of a request's plan. It is nil without a plan, if the policy does not
// have it, and if the key has a limit of its own. unknown says that the policy has other plans.
func (l *Limiter) planLimit(name, key string) (limit *engine.Resolved, unknown bool) {
	s := l.core.Settings()
	p := policyOf(s)
	if name == "" || len(p.Plans) == 0 {
		return nil, false
	}
	plan, known := p.Plans[name]
	if p.PerKey != nil {
		if _, own := l.perKey(p, key); own {
			return nil, false
		}
	}
	if !known {
		return nil, true
	}
	return l.carriedLimit(s, plan), false
}

// LimitOf returns the limit by which this Limiter made the Decision d, of several that of its
// LimitNumber, from memory. It reports false if the process no longer keeps the key.
func (l *Limiter) LimitOf(d Decision) (limit Limit, ok bool) {
	if l.isZero() {
		return Limit{}, false
	}
	if p := policyOf(l.core.Settings()); p.PerKey == nil && !l.core.Carries() {
		if !p.Limit.several() {
			return p.Limit, true
		}
		each := p.Limit.Each()
		return each[min(max(int(d.LimitNumber), 1), len(each))-1], true
	}
	p, ok := l.core.Find(d.Key)
	if !ok {
		return Limit{}, false
	}
	switch p.Rule {
	case local.Unlimited:
		return Unlimited(), true
	case local.Blocked:
		return Blocked(), true
	default:
		return Limit(engine.Owner(p).LimitOf(d.LimitNumber, d.Burst)), true
	}
}
