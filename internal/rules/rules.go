// Package rules is what middleware and interceptors have in common: how the rules of a user count a
// request R. A [Key] tells what a request counts for, [Collect] what its rules take, [Take] takes
// it, and a [Settlement] corrects it.
package rules

import (
	"slices"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Rule is one policy that applies to requests.
type Rule[R any] struct {
	Limiter *Limiter
	AtOnce  *atonce.Limiter // nil, or what gives requests their places; then Limiter may be nil
	Key     Key[R]
	Missing Missing
	Cost    func(R) int64 // nil means 1
	Plan    func(R) string
	OnePlan bool // Plan is that of all rules with OnePlan: it is asked once
	Limit   func(R) tiered.Limit
	Skip    func(R) bool
	Settles bool // what a request of cost 0 has cost may be charged
	Hidden  bool // clients are not told of its limit
	Number  int  // among the rules of the user
}

// Missing says what happens to a request that has no key for a rule.
type Missing uint8

// What may happen.
const (
	_ Missing = iota
	Refuse
	Exempt
	Together
	Next
)

// Words are those of an adapter, for what it says is wrong.
type Words struct {
	Package string // "httplimit"
	Request string // what it counts: "request"
	Key     string // a key: "RemoteIP()"
}

// Check says by bad what is wrong with rules.
func Check[R any](all []Rule[R], w Words, bad func(format string, args ...any)) {
	if len(all) == 0 {
		bad("rules is empty: must have one at least")
	}
	names := map[string]int{}
	for i, r := range all {
		name := r.Limiter.Policy().Name
		first, twice := names[name]
		switch {
		case r.AtOnce != nil && r.AtOnce.Policy().Name == "":
			bad("rules[%d].AtOnce is zero: must be made by atonce.New", i)
		case r.Limiter == nil && r.AtOnce != nil:
			if r.Cost != nil || r.Limit != nil {
				bad("rules[%d].Limiter is nil: must be set, because Cost or Limit is", i)
			}
			if r.Hidden {
				bad("rules[%d].Hidden is set: must be false without a Limiter, because no field tells of places", i)
			}
			if r.Plan != nil && !r.OnePlan && !r.hasPlans() {
				bad("rules[%d].Plan is set, and policy %q has no Plans: must be nil, or the policy must have plans", i, r.AtOnce.Policy().Name)
			}
		case r.Limiter == nil:
			bad("rules[%d].Limiter is nil: must be set", i)
		case r.Limiter.Group() == nil:
			bad("rules[%d].Limiter is zero: must be made by tiered.New or Group.NewLimiter", i)
		case twice && !standIn(all[first:i]):
			bad("rules[%d].Limiter has policy %q, as rules[%d] has: must be another policy", i, name, first)
		default:
			names[name] = i
			r.checkLimits(i, name, bad)
		}
		switch {
		case r.Key.Err != nil:
			bad("rules[%d].Key %w", i, r.Key.Err)
		case r.Key.Of == nil:
			bad("rules[%d].Key is zero: must be set, as in %s.%s", i, w.Package, w.Key)
		}
		switch {
		case r.Missing < Refuse || r.Missing > Next:
			bad("rules[%d].Missing is %d: must be Refuse, Exempt, Together or Next", i, r.Missing)
		case r.Missing == Next && i+1 == len(all):
			bad("rules[%d].Missing is Next: must be Refuse, Exempt or Together, because it is the last rule", i)
		}
	}
}

// SharePlan makes plan, if it is not nil, that of all rules without one of their own. It says by
// bad if none of them needs it.
func SharePlan[R any](all []Rule[R], plan func(R) string, bad func(format string, args ...any)) {
	if plan == nil {
		return
	}
	needed := len(all) == 0
	for i := range all {
		if r := &all[i]; r.Plan == nil {
			r.Plan, r.OnePlan = plan, true
			needed = needed || r.hasPlans()
		}
	}
	if !needed {
		bad("Options.Plan is set, and no policy of the rules without Plan has Plans: must be nil, or one must have plans")
	}
}

// hasPlans reports whether a policy of the rule has plans.
func (r *Rule[R]) hasPlans() bool {
	return len(r.Limiter.Policy().Plans) > 0 || r.AtOnce != nil && len(r.AtOnce.Policy().Plans) > 0
}

// checkLimits says what is wrong with the limits that requests have by a rule.
func (r *Rule[R]) checkLimits(i int, name string, bad func(format string, args ...any)) {
	if r.Plan != nil && !r.OnePlan && !r.hasPlans() {
		bad("rules[%d].Plan is set, and policy %q has no Plans: must be nil, or the policy must have plans", i, name)
	}
}

// afterNext returns the number of the first rule that does not stand in for all[i]. The last rule
// has another Missing.
func afterNext[R any](all []Rule[R], i int) int {
	for all[i].Missing == Next {
		i++
	}
	return i + 1
}

// standIn reports whether each of these rules lets the one after it count what it has no key for.
func standIn[R any](all []Rule[R]) bool {
	return !slices.ContainsFunc(all, func(r Rule[R]) bool { return r.Missing != Next })
}

// Keyless is the Decision on a request that has no key for the rule.
func (r *Rule[R]) Keyless() tiered.Decision {
	name := r.Limiter.Policy().Name
	if r.Limiter == nil {
		name = r.AtOnce.Policy().Name
	}
	return tiered.Decision{Reason: tiered.InvalidKey, Policy: name}
}
