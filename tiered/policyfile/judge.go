package policyfile

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A mistake in one field must not hide those in others, and must not make up any. So a policy with
// a field that could not be read is judged with several values in its place: what is wrong with all
// of them is wrong.

// judge reports what is wrong with a policy in itself. Fields with a mistake are unread from then
// on.
func (p *policy) judge(r *reader, path string) {
	faults := wrong(p.standIns(), tiered.Policy.Validate)
	for _, f := range slices.DeleteFunc(faults, func(f fault) bool { return p.unread[f.field] }) {
		r.Bad(cmp.Or(p.at[f.place], p.at[f.field], p.at[""]), "%s: %s", path, plain(f.err))
		p.unread[f.field] = true // what depends on it is judged without it
	}
	for _, k := range p.keys {
		all := p.standIns()
		if p.unread["Limit"] { // it may be as this one is
			for _, q := range all {
				q.Limit = k.limit
				all = append(all, q)
			}
		}
		all = slices.DeleteFunc(all, func(p tiered.Policy) bool { return p.Validate() != nil })
		for _, f := range wrong(all, func(p tiered.Policy) error { return p.CheckLimit(k.limit) }) {
			r.Bad(k.node, "%s: the limit of this key: %s", path, plain(f.err))
		}
	}
}

// couldBe returns the policies with one limit for all keys that a policy could be, the largest
// first.
func (p policy) couldBe() (all []tiered.Policy) {
	p.PerKey = nil
	anyLimit := p.unread["PerKey"] || p.unread["Plans"]
	for _, q := range p.standIns() {
		all = append(all, q)
		for _, k := range p.keys {
			q.Limit = k.limit
			all = append(all, q)
		}
		if anyLimit {
			q.Limit, q.Plans = tiered.Unlimited(), nil
			all = append(all, q)
		}
	}
	burst := func(l tiered.Limit) int64 { return cmp.Or(l.Burst, l.Tokens) }
	slices.SortStableFunc(all, func(a, b tiered.Policy) int { return cmp.Compare(burst(b.Limit), burst(a.Limit)) })
	return slices.DeleteFunc(all, func(p tiered.Policy) bool { return p.Validate() != nil })
}

// standIns returns the policies that one with unread fields could be.
func (p policy) standIns() []tiered.Policy {
	all := []tiered.Policy{p.Policy}
	for _, f := range allFields {
		if so := all; p.unread[f.of] && f.standIns != nil {
			all = nil
			for _, p.Policy = range so {
				for _, set := range f.standIns {
					set(&p)
					all = append(all, p.Policy)
				}
			}
		}
	}
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
				f.place, f.field, f.which = m[1], m[2], fmt.Sprint(m[1], m[3], seen[m[0]])
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
