package tiered

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Validate reports all problems of p, each with field, value and rule.
func (p Policy) Validate() error {
	f := &faults{of: "Policy"}
	if !policyName.MatchString(p.Name) {
		f.bad("Name", fmt.Sprintf("%.80q", p.Name), "must be 1 to 64 of A-Z a-z 0-9 _ . -")
	}
	p.validateAlgorithm(f)
	p.validateStanding(f)
	p.validatePlans(f)
	err := p.Limit.validate("Policy.Limit")
	if err != nil {
		f.all = append(f.all, err)
	}
	limited := err == nil && p.Limit.rule() == local.ByLimit // an invalid limit has no quarter
	quarter := (p.Limit.Each()[0].burst() + 3) / 4           // a smaller one of several reduces it, as one of a key does
	if p.Lease.Size < NoLease || limited && p.PerKey == nil && len(p.Plans) == 0 && p.Lease.Size > quarter {
		f.bad("Lease.Size", p.Lease.Size,
			fmt.Sprintf("must be 0 (follow demand), NoLease, or 1 to a quarter of the burst, here %d", quarter))
	}
	if p.FailMode > FailClosed {
		f.bad("FailMode", p.FailMode, "must be FailLocal, FailOpen or FailClosed")
	}
	if d := p.Lease.Period; d != 0 && (d < minPeriod || d > maxPeriod) {
		f.bad("Lease.Period", d, "must be 5ms to 1m, or 0 for 250ms")
	}
	return f.err()
}

// monthLike is the shortest Per that may be meant to be a month.
const monthLike = 28 * 24 * time.Hour

// Warnings returns the settings of a valid p that are probably mistakes, each in a line with field,
// value and rule. The log has them too.
func (p Policy) Warnings() (all []string) {
	if l := p.Limit; l.rule() == local.ByLimit && p.Algorithm.has(lua.Phased) && l.Per >= monthLike {
		all = append(all, fmt.Sprintf("Policy.Limit.Per is %v: a month? Its windows begin for each key at an instant of its own, or "+
			"at multiples of Per since 1970, so twice the limit fits into a month: PerMonth, PerQuarter and PerYear are of the calendar", l.Per))
	}
	return all
}

// validateAlgorithm reports settings that do not go together.
func (p Policy) validateAlgorithm(f *faults) {
	a := p.Algorithm
	if !slices.Contains(lua.Choices(), lua.Algorithm(a)) {
		f.bad("Algorithm", a, "must be "+named(func(lua.Algorithm) bool { return true }))
		return
	}
	p.validateMaxDebt(f)
	if p.Limit.rule() != local.ByLimit {
		if a.has(lua.NamesPer) {
			f.bad("Limit", "Unlimited or Blocked",
				"must be a limit, because the names of the buckets contain its Per; PerKey may return these")
		}
		return
	}
	if p.Calendar && !a.has(lua.Phased) {
		f.bad("Calendar", true, a.only(lua.Phased))
	}
	if p.Calendar && !p.Limit.Calendar.IsZero() {
		f.bad("Calendar", true, "must be false beside Limit.Calendar, which says when the windows begin")
	}
	if size := p.Lease.Size; !a.has(lua.Leased) && size != 0 && size != NoLease {
		f.bad("Lease.Size", size, "must be 0 or NoLease: a "+a.name()+" is never leased")
	}
	if !a.has(lua.Leased) && p.Lease.Period != 0 {
		f.bad("Lease.Period", p.Lease.Period, "must be 0: a "+a.name()+" is never leased")
	}
	p.Limit.validateFor(a, "Limit", f)
}

// validateMaxDebt reports a debt that no bucket can have, or that is less than what an outage may
// admit.
func (p Policy) validateMaxDebt(f *faults) {
	if p.MaxDebt == 0 {
		return
	}
	if !p.Algorithm.has(lua.Owes) {
		f.bad("MaxDebt", p.MaxDebt, p.Algorithm.only(lua.Owes))
		return
	}
	least := int64(1)
	for _, l := range p.Limit.Each() {
		if l.rule() == local.ByLimit {
			least = max(least, l.burst())
		}
	}
	if p.MaxDebt < least || p.MaxDebt > maxTokens {
		f.bad("MaxDebt", p.MaxDebt,
			fmt.Sprintf("must be 0 for one burst, or at least the burst, here %d, and at most 2⁴⁰", least))
	}
}

// validateFor reports what an algorithm does not use, or cannot count.
func (l Limit) validateFor(a Algorithm, field string, f *faults) {
	each := l.Each()
	if n := len(each) - 1; n > 0 && !lua.Algorithm(a).BySeveral().Has(lua.Several) {
		f.bad(field+".Also", limitsOf(n), a.only(lua.Several))
	}
	for i, l := range each {
		l.validateOne(a, limitField(field, i), f)
		for j, other := range each[:i] {
			if a.has(lua.Blocks) && (l.precision() <= 0 || other.precision() <= 0) {
				continue // it is reported by itself, and has no blocks
			}
			if s, o := l.stored(a), other.stored(a); s.Period == o.Period && s.Span == o.Span {
				rule := "must differ from that of " + limitField(field, j)
				if a.has(lua.Blocks) {
					rule += fmt.Sprintf(", or the Precision must: both count by %d blocks of %v", s.Span-1, l.precision())
				}
				f.bad(limitField(field, i)+".Per", l.Per, rule)
			}
		}
	}
}

// validateOne is validateFor of one limit.
func (l Limit) validateOne(a Algorithm, field string, f *faults) {
	if !l.Calendar.IsZero() && !a.has(lua.Phased) {
		f.bad(field+".Calendar", "a "+l.Calendar.Unit.String(), a.only(lua.Phased)+" (a rate per 30 days is written 30d)")
	}
	if l.Precision != 0 && !a.has(lua.Blocks) {
		f.bad(field+".Precision", l.Precision, a.only(lua.Blocks))
	}
	if !a.has(lua.Window) {
		return
	}
	if a.has(lua.Entries) && l.Tokens > maxEntries {
		f.bad(field+".Tokens", l.Tokens, fmt.Sprintf("must be at most %d: a %s keeps every request", maxEntries, a.name()))
	}
	if l.Burst != 0 && l.Burst != l.Tokens && l.Burst != burstOfNone {
		f.bad(field+".Burst", l.Burst, "must be 0: a "+a.String()+" admits Tokens and no more at once")
	}
	if !l.Calendar.IsZero() {
		return
	}
	if l.Per > maxWindow {
		f.bad(field+".Per", l.Per, "must be at most 10 years of a "+a.String())
	}
	if !a.has(lua.Blocks) || l.Per < time.Microsecond {
		return
	}
	if q := l.precision(); q < time.Microsecond || q > l.Per || q%time.Microsecond != 0 {
		f.bad(field+".Precision", l.Precision, "must be 1µs to Per, in whole microseconds, or 0")
	} else if n := (l.Per + q - 1) / q; n > maxBlocks {
		f.bad(field+".Precision", l.Precision,
			fmt.Sprintf("must divide Per into at most %d blocks, here %d: their span is one longer, and at most 512",
				maxBlocks, n))
	}
}

// validateStanding reports why the policy cannot have standing shares.
func (p Policy) validateStanding(f *faults) {
	switch {
	case p.Standing == 0:
		return
	case !(p.Standing >= 0 && p.Standing <= lua.MostShared/8.) || p.Standing*8 != float64(p.eighths()):
		f.bad("Standing", p.Standing, "must be a multiple of 1/8 from 0 to 3/4")
		return
	case !p.splits() && !p.Limit.Calendar.IsZero():
		f.bad("Standing", p.Standing, "must be 0 with windows of the calendar, because those of a key may overlap when they change")
		return
	case !p.splits():
		f.bad("Standing", p.Standing, "must be 0 with a "+p.Algorithm.String()+": only a TokenBucket or a FixedWindow can be split")
		return
	}
	each := p.Limit.Each()
	for i, l := range each {
		if l.rule() != local.ByLimit || l.validate("") != nil { // that is reported elsewhere
			return
		}
		_, _, err := p.splitOne(l, len(each) > 1, p.eighths())
		if p.Algorithm.has(lua.Window) && l.longest() < standing.ShortestWindow {
			err = fmt.Errorf("its window is %v: must be at least %v, because shares go by what a process knows of Redis' clock",
				l.longest(), standing.ShortestWindow)
		}
		if most := standing.MostInWindow(l.longest()); p.Algorithm.has(lua.Window) && standing.Tokens(l.burst(), int64(p.eighths())) > most {
			err = fmt.Errorf("the processes would share %d tokens of its window: must be at most %d, 16 for each microsecond",
				standing.Tokens(l.burst(), int64(p.eighths())), most)
		}
		if least := standing.MinBurst(int64(p.eighths())); p.PerKey == nil && l.burst() < least {
			err = fmt.Errorf("its burst is %d: must be at least %d", l.burst(), least)
		}
		if err != nil {
			f.bad("Standing", p.Standing, fmt.Sprintf("must be 0 with %s %v: %v", limitField("Limit", i), l, err))
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

// validatePlans reports plans that no request can have, and what does not go together with plans. A
// plan may have each limit that a request may carry: see CheckLimit.
func (p Policy) validatePlans(f *faults) {
	if len(p.Plans) == 0 {
		return
	}
	refuse := func(rule string) { f.bad("Plans", fmt.Sprintf("%d plans", len(p.Plans)), rule) }
	if p.Limit == unlimited {
		f.bad("Limit", "Unlimited", "must be a limit or Blocked with Plans, because requests with an unknown plan go by it")
	}
	if len(p.Plans) > maxPlans {
		refuse(fmt.Sprintf("must be at most %d", maxPlans))
		return
	}
	for _, name := range planNames(p.Plans) {
		field, l := planField(name), p.Plans[name]
		switch {
		case name == "":
			refuse(`must have no plan "", because that is a request without a plan: Limit is its limit`)
		case len(name) > maxPlanName || strings.TrimSpace(name) != name:
			f.bad(field, l, fmt.Sprintf("its name must be 1 to %d bytes, without space around", maxPlanName))
		}
		if err := l.validate("Policy." + field); err != nil {
			f.all = append(f.all, err)
			continue
		}
		if l.rule() != local.ByLimit {
			continue
		}
		l.validateFor(p.Algorithm, field, f)
		p.validateBeside(l, field, f)
	}
}

// validateBeside reports why a limit of a key or of a plan cannot stand for the policy's, by which
// the buckets in Redis count too.
func (p Policy) validateBeside(l Limit, field string, f *faults) {
	if p.Limit == (Limit{}) { // that is reported elsewhere
		return
	}
	each, of := l.Each(), p.Limit.Each()
	if len(each) != len(of) {
		if len(of) == 1 && !lua.Algorithm(p.Algorithm).BySeveral().Has(lua.Several) { // that is reported elsewhere
			return
		}
		f.bad(field, numberOf(l), fmt.Sprintf("must be %s, as Limit is, because the buckets in Redis count by them", numberOf(p.Limit)))
		return
	}
	if p.Limit.rule() != local.ByLimit {
		return
	}
	for i, l := range each {
		one := limitField("Limit", i)
		switch is := of[i]; {
		case (p.namesPer() || len(of) > 1) && l.counted() != is.counted():
			f.bad(limitField(field, i)+".Per", l.counted(),
				fmt.Sprintf("must be that of %s, %v, because the buckets in Redis count by it", one, is.counted()))
		case len(of) > 1 && p.Algorithm.has(lua.Blocks) && l.precision() != is.precision():
			f.bad(limitField(field, i)+".Precision", l.precision(),
				fmt.Sprintf("must be that of %s, %v, because the buckets in Redis count by it", one, is.precision()))
		}
	}
}

// numberOf says how many limits l is.
func numberOf(l Limit) string { return limitsOf(engine.Limit(l).Len()) }

// limitsOf returns the words for a number of limits.
func limitsOf(n int) string {
	if n == 1 {
		return "1 limit"
	}
	return fmt.Sprintf("%d limits", n)
}

// largest returns the limit with the largest burst of those that requests may have, Limit and
// Plans, and its field.
func (p Policy) largest() (limit Limit, field string) {
	limit, field = p.Limit, "Limit"
	for _, name := range planNames(p.Plans) {
		if l := p.Plans[name]; l != blocked && (limit == blocked || l.burst() > limit.burst()) {
			limit, field = l, planField(name)
		}
	}
	return limit, field
}

// CheckCost returns why no request that costs n is ever admitted by a valid policy, or nil. A
// policy with PerKey may give some keys a larger limit, and is not asked: then only n itself is
// checked. Blocked admits nothing on purpose, at any cost.
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
	rest, _, split := p.split(p.eighths()) // what Redis has
	for i, limit := range p.Limit.Each() {
		most := rest.Limit.Each()[i].burst()
		if limit.rule() != local.ByLimit || n <= most {
			continue
		}
		field, parts := "Tokens", ""
		if limit.Burst > 0 {
			field = "Burst"
		}
		if split {
			parts = fmt.Sprintf(" and Policy.Standing is %v", p.Standing)
		}
		return fmt.Errorf("tiered: the cost is %d: must be at most %d, because Policy.%s.%s is %d%s",
			n, most, limitField("Limit", i), field, limit.burst(), parts)
	}
	return nil
}

// CheckLimit returns why PerKey of a valid policy may not return the limit for a key, and no request
// may carry it, or nil.
func (p Policy) CheckLimit(limit Limit) error {
	if limit.rule() != local.ByLimit {
		return nil
	}
	q := p
	q.Plans = nil                                                  // they do not matter to this limit
	q.Limit, q.PerKey = limit, func(string) Limit { return limit } // a larger Lease.Size is reduced
	if q.MaxDebt > 0 {                                             // a larger burst is the key's MaxDebt
		for _, l := range limit.Each() {
			q.MaxDebt = min(max(q.MaxDebt, l.burst()), engine.MaxTokens)
		}
	}
	f := faults{of: "Policy"}
	p.validateBeside(limit, "Limit", &f)
	return errors.Join(q.Validate(), f.err())
}

// checkReplaces reports settings of p that cannot replace those of was, because existing buckets
// count by them.
func (p Policy) checkReplaces(was Policy) error {
	f := faults{of: "Policy"}
	stays := func(stays bool, field string, is, was any) {
		if !stays {
			f.bad(field, is, fmt.Sprintf("must stay %v, because the buckets in Redis count by it", was))
		}
	}
	stays(p.Name == was.Name, "Name", fmt.Sprintf("%.80q", p.Name), fmt.Sprintf("%q", was.Name))
	stays(p.Algorithm == was.Algorithm, "Algorithm", p.Algorithm, was.Algorithm)
	stays(p.Calendar == was.Calendar, "Calendar", p.Calendar, was.Calendar)
	each, of := p.Limit.Each(), was.Limit.Each()
	if len(each) != len(of) {
		stays(false, "Limit", numberOf(p.Limit), numberOf(was.Limit))
		return f.err()
	}
	for i, l := range each {
		limited := l.rule() == local.ByLimit && l != (Limit{})
		stays(!was.namesPer() || !limited || l.counted() == of[i].counted(), limitField("Limit", i)+".Per", l.counted(), of[i].counted())
	}
	return f.err()
}

// counted is what the name of a bucket, or of a limit in it, says of l if it says the Per: Per, or
// the unit of the calendar. Where in the calendar the unit begins may change.
func (l Limit) counted() any {
	if l.Calendar.IsZero() {
		return l.Per
	}
	return l.Calendar.Unit
}

// namesPer reports whether the Per of Limit is part of a bucket's name, or of a limit's name within
// a bucket. Another Per would begin with full buckets.
func (p Policy) namesPer() bool { return p.algorithm().Has(lua.NamesPer) }
