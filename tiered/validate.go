package tiered

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Validate reports all problems of p, each with field, value and rule.
func (p Policy) Validate() error {
	var all []error
	bad := func(field string, value any, rule string) {
		all = append(all, fmt.Errorf("tiered: Policy.%s is %v: %s", field, value, rule))
	}
	if !policyName.MatchString(p.Name) {
		name := p.Name
		if len(name) > 80 {
			name = name[:80] + "…"
		}
		bad("Name", fmt.Sprintf("%q", name), "must be 1 to 64 of A-Z a-z 0-9 _ . -")
	}
	p.validateAlgorithm(bad)
	p.validateStanding(bad)
	all = append(all, p.validatePlans(bad)...)
	for i, l := range p.Also {
		if l.rule() != local.ByLimit {
			bad(fmt.Sprintf("Also[%d]", i), "Unlimited or Blocked", "must be a limit")
		} else if err := l.validate(fmt.Sprintf("Policy.Also[%d]", i)); err != nil {
			all = append(all, err)
		}
	}
	l := p.Limit
	err := l.validate("Policy.Limit")
	if err != nil {
		all = append(all, err)
	}
	limited := err == nil && l.rule() == local.ByLimit // an invalid limit has no quarter
	quarter := (l.burst() + 3) / 4
	if p.Lease.Size < NoLease || limited && p.PerKey == nil && len(p.Plans) == 0 && p.Lease.Size > quarter {
		bad("Lease.Size", p.Lease.Size,
			fmt.Sprintf("must be 0 (follow demand), NoLease, or 1 to a quarter of the burst, here %d", quarter))
	}
	if p.FailMode > FailClosed {
		bad("FailMode", p.FailMode, "must be FailLocal, FailOpen or FailClosed")
	}
	if d := p.Lease.Period; d != 0 && (d < minPeriod || d > maxPeriod) {
		bad("Lease.Period", d, "must be 5ms to 1m, or 0 for 250ms")
	}
	return errors.Join(all...)
}

// validateAlgorithm reports settings that do not go together.
func (p Policy) validateAlgorithm(bad func(field string, value any, rule string)) {
	a := p.Algorithm
	if !slices.Contains(lua.Choices(), lua.Algorithm(a)) {
		bad("Algorithm", a, "must be "+named(func(lua.Algorithm) bool { return true }))
		return
	}
	p.validateMaxDebt(bad)
	if p.Limit.rule() != local.ByLimit {
		if a.has(lua.NamesPer) {
			bad("Limit", "Unlimited or Blocked",
				"must be a limit, because the names of the buckets contain its Per; PerKey may return these")
		}
		if len(p.Also) > 0 {
			bad("Also", fmt.Sprintf("%d limits", len(p.Also)), "must be empty if Limit is Unlimited or Blocked")
		}
		return
	}
	if p.PerKey != nil && len(p.Also) > 0 {
		bad("Also", fmt.Sprintf("%d limits", len(p.Also)), "must be empty with PerKey")
	}
	if p.Calendar && !a.has(lua.Phased) {
		bad("Calendar", true, a.only(lua.Phased))
	}
	if len(p.Also) > 0 && !p.algorithm().Has(lua.Several) {
		bad("Also", fmt.Sprintf("%d limits", len(p.Also)), a.only(lua.Several))
	}
	if len(p.Also) >= maxLimits {
		bad("Also", fmt.Sprintf("%d limits", len(p.Also)), fmt.Sprintf("must be at most %d", maxLimits-1))
		return
	}
	if !a.has(lua.Leased) {
		if p.Lease.Size != 0 && p.Lease.Size != NoLease {
			bad("Lease.Size", p.Lease.Size, "must be 0 or NoLease: a "+a.name()+" is never leased")
		}
		if p.Lease.Period != 0 {
			bad("Lease.Period", p.Lease.Period, "must be 0: a "+a.name()+" is never leased")
		}
	}
	for i, l := range p.limits() {
		field := "Limit"
		if i > 0 {
			field = fmt.Sprintf("Also[%d]", i-1)
		}
		l.validateFor(a, field, bad)
		for j, other := range p.limits()[:i] {
			if a.has(lua.Blocks) && (l.precision() <= 0 || other.precision() <= 0) {
				continue // it is reported by itself, and has no blocks
			}
			if s, o := l.stored(a), other.stored(a); s.Period == o.Period && s.Span == o.Span {
				name := "Limit"
				if j > 0 {
					name = fmt.Sprintf("Also[%d]", j-1)
				}
				rule := "must differ from that of " + name
				if a.has(lua.Blocks) {
					rule += fmt.Sprintf(", or the Precision must: both count by %d blocks of %v", s.Span-1,
						l.precision())
				}
				bad(field+".Per", l.Per, rule)
			}
		}
	}
}

// validateMaxDebt reports a debt that no bucket can have, or that is less than what an outage may admit.
func (p Policy) validateMaxDebt(bad func(field string, value any, rule string)) {
	if p.MaxDebt == 0 {
		return
	}
	if !p.Algorithm.has(lua.Owes) {
		bad("MaxDebt", p.MaxDebt, p.Algorithm.only(lua.Owes))
		return
	}
	least := int64(1)
	if p.Limit.rule() == local.ByLimit {
		for _, l := range p.limits() {
			if l.rule() == local.ByLimit {
				least = max(least, l.burst())
			}
		}
	}
	if p.MaxDebt < least || p.MaxDebt > maxTokens {
		bad("MaxDebt", p.MaxDebt, fmt.Sprintf("must be 0 for one burst, or at least the burst, here %d, and at most 2⁴⁰", least))
	}
}

// validateFor reports what an algorithm does not use, or cannot count.
func (l Limit) validateFor(a Algorithm, field string, bad func(field string, value any, rule string)) {
	if l.Precision != 0 && !a.has(lua.Blocks) {
		bad(field+".Precision", l.Precision, a.only(lua.Blocks))
	}
	if !a.has(lua.Window) {
		return
	}
	if a.has(lua.Entries) && l.Tokens > maxEntries {
		bad(field+".Tokens", l.Tokens, fmt.Sprintf("must be at most %d: a %s keeps every request", maxEntries, a.name()))
	}
	if l.Burst != 0 && l.Burst != l.Tokens {
		bad(field+".Burst", l.Burst, "must be 0: a "+a.String()+" admits Tokens and no more at once")
	}
	if l.Per > maxWindow {
		bad(field+".Per", l.Per, "must be at most 10 years of a "+a.String())
	}
	if !a.has(lua.Blocks) || l.Per < time.Microsecond {
		return
	}
	if q := l.precision(); q < time.Microsecond || q > l.Per || q%time.Microsecond != 0 {
		bad(field+".Precision", l.Precision, "must be 1µs to Per, in whole microseconds, or 0")
	} else if n := (l.Per + q - 1) / q; n > maxBlocks {
		bad(field+".Precision", l.Precision,
			fmt.Sprintf("must divide Per into at most %d blocks, here %d: their span is one longer, and at most 512",
				maxBlocks, n))
	}
}

// validateStanding reports what cannot have standing shares.
func (p Policy) validateStanding(bad func(field string, value any, rule string)) {
	switch {
	case p.Standing == StandingOff:
		return
	case int(p.Standing) >= len(standings):
		bad("Standing", p.Standing, "must be StandingOff, StandingSplit or StandingOn")
	case p.Algorithm.has(lua.Window):
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

const (
	maxPlans    = 1000 // so that the limits of all are kept ready: see engine.MaxPolicies
	maxPlanName = 64   // bytes
)

var _ = [engine.MaxPolicies - maxPlans - 1]struct{}{}

// planNames returns the names in order.
func planNames(of map[string]Limit) []string { return slices.Sorted(maps.Keys(of)) }

// planField is how errors name a plan.
func planField(name string) string { return fmt.Sprintf("Plans[%.80q]", name) }

// validatePlans reports plans that no request can have, and what does not go together with plans. A plan may have each
// limit that a request may carry: see checkCarriedLimit.
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
	for _, name := range planNames(p.Plans) {
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
	for _, name := range planNames(p.Plans) {
		if l := p.Plans[name]; l != blocked && (limit == blocked || l.burst() > limit.burst()) {
			limit, field = l, planField(name)
		}
	}
	return limit, field
}

// CheckCost returns why no request that costs n is ever admitted by a valid policy, or nil. A policy with PerKey may give
// some keys a larger limit, and is not asked: then only n itself is checked. Blocked admits nothing on purpose, at any
// cost.
func (p Policy) CheckCost(n int64) error {
	if n < 1 || n > maxTokens {
		return fmt.Errorf("tiered: the cost is %d: must be 1 to 2^40", n)
	}
	if p.PerKey != nil {
		return nil
	}
	if limit, field := p.largest(); field != "Limit" {
		q := p
		if q.Limit, q.Plans = limit, nil; q.CheckCost(n) == nil {
			return nil
		}
		return fmt.Errorf("tiered: the cost is %d: must be at most %d, the burst of Policy.%s", n, limit.burst(), field)
	}
	rest, _, split := p.split() // what Redis has
	for i, limit := range p.limits() {
		most := rest.limits()[i].burst()
		if limit.rule() != local.ByLimit || n <= most {
			continue
		}
		of, field, parts := "Limit", "Tokens", ""
		if i > 0 {
			of = fmt.Sprintf("Also[%d]", i-1)
		}
		if limit.Burst > 0 {
			field = "Burst"
		}
		if split {
			parts = fmt.Sprintf(" and Policy.Standing is %v", p.Standing)
		}
		return fmt.Errorf("tiered: the cost is %d: must be at most %d, because Policy.%s.%s is %d%s",
			n, most, of, field, limit.burst(), parts)
	}
	return nil
}

// CheckLimit returns why PerKey of a valid policy may not return the limit for a key, or nil.
func (p Policy) CheckLimit(limit Limit) error {
	if limit.rule() != local.ByLimit {
		return nil
	}
	q := p
	q.Plans = nil                                                  // they do not matter to this limit
	q.Limit, q.PerKey = limit, func(string) Limit { return limit } // a larger Lease.Size is reduced
	if q.MaxDebt > 0 {                                             // a larger burst is the key's MaxDebt
		q.MaxDebt = min(max(q.MaxDebt, limit.burst()), engine.MaxTokens)
	}
	err := q.checkReplaces(p)
	if _, _, ok := q.split(); !ok { // Redis has the whole limit of this key
		q.Standing = StandingOff
	}
	return errors.Join(q.Validate(), err)
}

// checkCarriedLimit returns why no request of a valid policy may carry the limit, or nil.
func (p Policy) checkCarriedLimit(limit Limit) error {
	if len(p.Also) > 0 {
		return fmt.Errorf("tiered: Policy.Also has %d limits: must be empty if requests carry limits", len(p.Also))
	}
	if p.Standing != StandingOff {
		return fmt.Errorf("tiered: Policy.Standing is %v: must be off if requests carry limits", p.Standing)
	}
	return p.CheckLimit(limit)
}

// checkReplaces reports settings of p that cannot replace those of was, because existing buckets count by them.
func (p Policy) checkReplaces(was Policy) error {
	var all []error
	stays := func(stays bool, field string, is, was any) {
		if !stays {
			all = append(all, fmt.Errorf("tiered: Policy.%s is %v: must stay %v, because the buckets in Redis count by it",
				field, is, was))
		}
	}
	stays(p.Name == was.Name, "Name", fmt.Sprintf("%.80q", p.Name), fmt.Sprintf("%q", was.Name))
	stays(p.Algorithm == was.Algorithm, "Algorithm", p.Algorithm, was.Algorithm)
	stays(p.Calendar == was.Calendar, "Calendar", p.Calendar, was.Calendar)
	stays(p.Standing == was.Standing, "Standing", p.Standing, was.Standing)
	stays(slices.Equal(p.Also, was.Also), "Also", p.Also, was.Also)
	limited := p.Limit.rule() == local.ByLimit && p.Limit != (Limit{})
	stays(!was.namesPer() || !limited || p.Limit.Per == was.Limit.Per, "Limit.Per", p.Limit.Per, was.Limit.Per)
	return errors.Join(all...)
}

// namesPer reports whether the Per of Limit is part of a bucket's name, or of a limit's name within a bucket. Another Per
// would begin with full buckets.
func (p Policy) namesPer() bool { return p.algorithm().Has(lua.NamesPer) }
