package policyfile

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A mistake in one field must not hide those in others, and must not make up any. So a policy with a field that could
// not be read is judged with several values in its place: what is wrong with all of them is wrong.

// standIns returns the policies that one with unread fields could be.
func standIns(p tiered.Policy, unread map[string]bool) []tiered.Policy {
	all := []tiered.Policy{p}
	in := func(field string, set ...func(*tiered.Policy)) {
		if !unread[field] {
			return
		}
		var more []tiered.Policy
		for _, p := range all {
			for _, f := range set {
				q := p
				f(&q)
				more = append(more, q)
			}
		}
		all = more
	}
	in("Name", func(p *tiered.Policy) { p.Name = "a" })
	in("Limit",
		func(p *tiered.Policy) { p.Limit = tiered.PerSecond(1) },
		func(p *tiered.Policy) { p.Limit = tiered.PerDay(1 << 30) },
		func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 1, Per: time.Second, Burst: 1 << 30} },
		func(p *tiered.Policy) { p.Limit = tiered.Unlimited() })
	in("Also",
		func(p *tiered.Policy) { p.Also = nil },
		func(p *tiered.Policy) { p.Also = []tiered.Limit{tiered.PerHour(1 << 30)} })
	in("Plans", func(p *tiered.Policy) { p.Plans = nil })
	in("Algorithm",
		func(p *tiered.Policy) { p.Algorithm = tiered.TokenBucket },
		func(p *tiered.Policy) { p.Algorithm = tiered.FixedWindow },
		func(p *tiered.Policy) { p.Algorithm = tiered.SlidingLog },
		func(p *tiered.Policy) { p.Algorithm = tiered.SlidingWindow })
	in("Calendar", func(p *tiered.Policy) { p.Calendar = false })
	in("FailMode", func(p *tiered.Policy) { p.FailMode = tiered.FailLocal })
	in("Standing", func(p *tiered.Policy) { p.Standing = tiered.StandingOff })
	in("MaxDebt", func(p *tiered.Policy) { p.MaxDebt = 0 })
	in("Lease.Size", func(p *tiered.Policy) { p.Lease.Size = 0 })
	in("Lease.Period", func(p *tiered.Policy) { p.Lease.Period = 0 })
	return all
}

// fault is what is wrong with a field of a policy.
type fault struct {
	field string // of tiered.Policy, or of its Lease
	place string // the field, or the plan
	which string // of several that a field has
	err   error
}

// ofField finds which field of a policy an error is about, and which part of it.
var ofField = regexp.MustCompile(`Policy\.((Lease\.\w+|\w+)(?:\["(?:[^"\\]|\\.)*"\])?)(\S*)`)

// wrong returns what is wrong with all of some policies.
func wrong(all []tiered.Policy, check func(tiered.Policy) error) (common []fault) {
	for i, p := range all {
		var is []fault
		seen := map[string]int{}
		for _, e := range split(check(p)) {
			f := fault{err: e, which: e.Error()}
			if m := ofField.FindStringSubmatch(e.Error()); m != nil {
				f.place, f.field = m[1], m[2]
				f.which = fmt.Sprint(m[1], m[3], seen[m[0]])
				seen[m[0]]++
			}
			is = append(is, f)
		}
		if i == 0 {
			common = is
		}
		common = slices.DeleteFunc(common, func(f fault) bool {
			return !slices.ContainsFunc(is, func(o fault) bool { return o.field == f.field && o.which == f.which })
		})
	}
	return common
}
