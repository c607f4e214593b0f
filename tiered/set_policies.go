package tiered

import (
	"errors"
	"fmt"
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
	g.setPoliciesMu.Lock()
	defer g.setPoliciesMu.Unlock()
	var problems []error
	stays := make(map[string]*Limiter)
	seen := make(map[string]bool)
	for _, p := range policies {
		if err := p.Validate(); err != nil {
			problems = append(problems, err)
		}
		if seen[p.Name] {
			problems = append(problems, fmt.Errorf("tiered: Policy.Name is %q: two policies have that name", p.Name))
		}
		seen[p.Name] = true
		l, ok := g.Limiter(p.Name)
		if !ok {
			continue
		}
		stays[p.Name] = l
		if err := p.checkReplaces(l.Policy()); err != nil {
			problems = append(problems, fmt.Errorf("policy %q: %w", p.Name, err))
		}
	}
	if g.closed.Load() {
		problems = append(problems, errClosed)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	for _, p := range policies {
		var err error
		if l := stays[p.Name]; l != nil {
			err = l.SetPolicy(p)
		} else {
			_, err = g.NewLimiter(p)
		}
		problems = append(problems, err) // the Group was closed meanwhile, or somebody else added a policy
	}
	for _, p := range g.Policies() {
		if !seen[p.Name] {
			g.remove(p.Name)
		}
	}
	return errors.Join(problems...)
}

// remove removes a policy.
func (g *Group) remove(name string) {
	ls := &g.limiters
	ls.mu.Lock()
	l := ls.byName[name]
	delete(ls.byName, name)
	if l != nil {
		l.removed.Store(true)
	}
	ls.mu.Unlock()
	if l == nil {
		return
	}
	p := l.Policy()
	p.FailMode = FailClosed // this process is not counted as one of the policy any more
	_ = l.SetPolicy(p)      // which was valid
	g.dispatch.Refresh()
}

// present returns the Limiters of the Group's policies and their shards, in the order in which they were added, without
// those that were removed.
func (ls *limiters) present() []*Limiter {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return slices.DeleteFunc(slices.Clone(ls.all), func(l *Limiter) bool { return l.parent.removed.Load() })
}
