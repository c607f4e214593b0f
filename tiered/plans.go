package tiered

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Plans are limits by the name of a plan, such as "free" or "pro": see [Policy].Plans.
//
// A plan comes with the request, so its user has it from the next request on, and nothing has to be refreshed. If only
// the key tells the plan, as a table of users in memory does, or if the policy has Standing, use [Policy].PerKey with
// the same map, and [Limiter.Refresh] when a user changes plans:
//
//	PerKey: func(user string) tiered.Limit { return plans[planOf(user)] }
type Plans map[string]Limit

const (
	maxPlans    = 1000 // so that the limits of all are kept ready: see engine.MaxPolicies
	maxPlanName = 64   // bytes
)

var _ = [engine.MaxPolicies - maxPlans - 1]struct{}{}

// WithPlan returns u with the limit of a plan, one of [Policy].Plans, which holds for it as by [Use.WithLimit]:
//
//	d := perUser.For(user).WithPlan(claims.Plan).Allow(ctx)
//
// "" means that the request has no plan: it goes by Policy.Limit. So does one with a plan that the policy does not have.
// PolicyStats.Faults counts those, and the first one is logged. The limit is looked up at once, so make the Use
// for each request: one that was made before the policy changed keeps the old limit.
func (u Use) WithPlan(name string) Use {
	u.own()
	for i := range u.n {
		p := u.at(i)
		if p.limit = nil; p.limiter != nil {
			p.limit = p.limiter.planLimit(name)
		}
	}
	return u
}

// planLimit returns the limit of a request's plan. It returns nil if the policy has no plans: then nobody carries any.
func (l *Limiter) planLimit(name string) *engine.Resolved {
	s, p := l.core.Settings(), l.policy.Load()
	limit, ok := p.Plans[name]
	if !ok {
		limit = p.Limit // also to take back the limit of the plan that the key had
		if name != "" {
			l.countUnknownPlan(p.Plans)
		}
	}
	if len(p.Plans) == 0 {
		return nil
	}
	return l.carriedLimit(s, limit)
}

// countUnknownPlan counts a plan that the policy does not have, and logs the first one. The line does not have its name,
// because a name that comes with a request may be anything, even a secret.
func (l *Limiter) countUnknownPlan(plans Plans) {
	if l.unknownPlans.Add(1) == 1 {
		l.group.journal.Line(slog.LevelError, "a request has a plan that the policy does not have: the policy's own limit decides",
			"policy", l.core.Name, "plans", strings.Join(plans.names(), ", "))
	}
}

// names returns the names in order.
func (p Plans) names() []string { return slices.Sorted(maps.Keys(p)) }

// planField is how errors name a plan.
func planField(name string) string { return fmt.Sprintf("Plans[%.80q]", name) }

// validatePlans reports plans that no request can have, and what does not go together with plans. A plan may have each
// limit that a request may carry: see CheckCarriedLimit.
func (p Policy) validatePlans(bad func(field string, value any, rule string)) (all []error) {
	if len(p.Plans) == 0 {
		return nil
	}
	refuse := func(rule string) { bad("Plans", fmt.Sprintf("%d plans", len(p.Plans)), rule) }
	if len(p.Also) > 0 {
		refuse("must be empty with Also, because a request carries one limit")
	}
	if p.Standing != StandingOff {
		refuse("must be empty with Standing, whose shares are of the key's limit: PerKey can give each key that of its plan")
	}
	if p.PerKey != nil {
		refuse("must be empty with PerKey, because a request's plan would replace what PerKey returns")
	}
	if p.Limit == unlimited {
		bad("Limit", "Unlimited", "must be a limit or Blocked with Plans, because requests with an unknown plan go by it")
	}
	if len(p.Plans) > maxPlans {
		refuse(fmt.Sprintf("must be at most %d", maxPlans))
		return nil
	}
	named := p.namesPer() && p.Limit.rule() == local.ByLimit && p.Limit != (Limit{})
	for _, name := range p.Plans.names() {
		field, l := planField(name), p.Plans[name]
		switch {
		case name == "":
			refuse(`must have no plan "", because that is a request without a plan: Limit is its limit`)
		case len(name) > maxPlanName || strings.TrimSpace(name) != name:
			bad(field, l, fmt.Sprintf("its name must be 1 to %d bytes, without space around", maxPlanName))
		}
		if err := l.validate("Policy." + field); err != nil {
			all = append(all, err)
			continue
		}
		if l.rule() != local.ByLimit {
			continue
		}
		l.validateFor(p.Algorithm, field, bad)
		if named && l.Per != p.Limit.Per {
			bad(field+".Per", l.Per, fmt.Sprintf("must be that of Limit, %v, because the buckets in Redis count by it", p.Limit.Per))
		}
	}
	return all
}

// largest returns the limit with the largest burst of those that requests may have, Limit and Plans, and its field.
func (p Policy) largest() (limit Limit, field string) {
	limit, field = p.Limit, "Limit"
	for _, name := range p.Plans.names() {
		if l := p.Plans[name]; l != blocked && (limit == blocked || l.burst() > limit.burst()) {
			limit, field = l, planField(name)
		}
	}
	return limit, field
}
