package tiered

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// SetPolicies makes the Group's policies those of the list, as a new version of a configuration: it adds policies,
// changes those whose name the Group has, as [Limiter.SetPolicy] does, and removes the others. If one of them is
// invalid, or cannot replace the policy of its name, it changes nothing. The error names all that is wrong.
//
// A Limiter of a policy that stays goes on, with the new policy. Code that still has the Limiter of a removed policy
// can go on using it. The Limiter keeps its last policy, except that its FailMode becomes FailClosed. Its leases are
// returned when they are not used any more, and its waiters are served. It is no longer in [Group.Policies] and
// [Stats]. A policy of that name may be added again.
func (g *Group) SetPolicies(policies []Policy) error {
	if g.isZero() {
		return errZeroGroup
	}
	g.setPoliciesMu.Lock()
	defer g.setPoliciesMu.Unlock()
	var problems []error
	changes := make(map[*Limiter]Policy)
	var added []Policy
	seen := make(map[string]bool)
	for i, p := range policies {
		err := p.Validate()
		if seen[p.Name] {
			err = errors.Join(err, fmt.Errorf("tiered: Policy.Name is %.80q: two policies have that name", p.Name))
		}
		seen[p.Name] = true
		if l, ok := g.Limiter(p.Name); !ok {
			added = append(added, p)
		} else if was := l.Policy(); !reflect.DeepEqual(p, was) { // two functions are never equal
			err = errors.Join(err, p.checkReplaces(was))
			changes[l] = p.clone()
		}
		switch {
		case err == nil:
		case p.Name == "":
			problems = append(problems, fmt.Errorf("policies[%d]: %w", i, err))
		default:
			problems = append(problems, fmt.Errorf("policy %.80q: %w", p.Name, err))
		}
	}
	if g.closed.Load() {
		problems = append(problems, errClosed)
	}
	if problems != nil {
		return errors.Join(problems...)
	}
	for _, p := range added {
		if _, err := g.add(p); err != nil { // the Group was closed meanwhile, or somebody else added a policy
			problems = append(problems, err)
		}
	}
	removed := g.removeOthers(seen)
	for _, l := range removed {
		p := l.Policy()
		p.FailMode = FailClosed // this process is not counted as one of the policy any more
		changes[l] = p
	}
	g.change(changes)
	if len(added)+len(removed) > 0 {
		g.dispatch.Refresh()
	}
	return errors.Join(problems...)
}

// change gives Limiters valid policies that can replace theirs, with one walk over the keys.
func (g *Group) change(policies map[*Limiter]Policy) {
	changed := make(map[*Limiter]bool)
	for l, p := range policies { // in any order: nobody else locks several
		l.setMu.Lock()
		defer l.setMu.Unlock()
		l.set(p)
		changed[l] = true
	}
	g.applySettings(changed)
}

// removeOthers removes the policies without these names, and returns their Limiters.
func (g *Group) removeOthers(stay map[string]bool) (removed []*Limiter) {
	ls := &g.limiters
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for name, l := range ls.byName {
		if !stay[name] {
			delete(ls.byName, name)
			l.removed.Store(true)
			removed = append(removed, l)
		}
	}
	return removed
}

// present returns the Limiters of the Group's policies and their shards, in the order in which they were added, without
// those that were removed.
func (ls *limiters) present() []*Limiter {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(ls.all), func(l *Limiter) bool { return l.parent.removed.Load() })
}
