package tiered

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// SetPolicies makes the Group's policies those of the list: it adds policies, changes those whose
// name the Group has, as [Limiter.SetPolicy] does, and removes the others. If one is invalid, or
// cannot replace that of its name, it changes nothing, and the error names all that is wrong.
//
// The Limiter of a removed policy still decides, but fails closed and uses no standing shares,
// because this process no longer counts as one that has the policy. Its leases are returned, and
// its waiters are served. If a policy of that name is added again and can replace the last one, it
// takes up that Limiter, with its keys and its figures; its Standing may change. Otherwise, and if
// that Limiter is no longer in use, it gets a new Limiter.
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
			err = errors.Join(err, fmt.Errorf("tiered: Policy.Name is %.80q: must differ from the names of the other policies", p.Name))
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
	if g.core.Closed.Load() {
		problems = append(problems, engine.ErrClosed)
	}
	if problems != nil {
		return errors.Join(problems...)
	}
	var gone []*engine.Limiter
	for _, l := range g.limiters.removeOthers(seen) { // first, so that their places are free
		gone = append(gone, &l.core)
		p := l.Policy()
		p.FailMode = FailClosed
		changes[l] = p
	}
	for _, p := range added {
		l, back, err := g.add(p)
		if err != nil { // the Group was closed meanwhile, or somebody else added a policy
			problems = append(problems, err)
		} else if back {
			changes[l] = p.clone()
		}
	}
	g.change(changes)
	if len(gone) > 0 { // their keys return what they hold, and are forgotten unless somebody uses them
		g.core.Retire(gone)
	}
	if len(added)+len(gone) > 0 {
		g.core.Dispatch.Refresh()
	}
	return errors.Join(problems...)
}

// change gives Limiters valid policies that can replace theirs, with one walk over the keys.
func (g *Group) change(policies map[*Limiter]Policy) {
	changed := make(map[*engine.Limiter]bool)
	for l, p := range policies { // in any order: nobody else locks several
		l.setMu.Lock()
		defer l.setMu.Unlock()
		l.set(p)
		changed[&l.core] = true
	}
	g.core.ApplySettings(changed)
}
