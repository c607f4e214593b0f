package atonce

import (
	"errors"
	"slices"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// groups are the Limiters of each Group that is not closed, the oldest first.
var groups struct {
	sync.Mutex
	of map[*tiered.Group][]*Limiter
}

// Of returns the Limiter of a Group by the name of its policy, or nil.
func Of(g *tiered.Group, name string) *Limiter {
	groups.Lock()
	defer groups.Unlock()
	for _, l := range groups.of[g] {
		if l.policy.Load().Name == name {
			return l
		}
	}
	return nil
}

// SetPolicies gives a Group these policies, as those of a file: by New for a new name, and by
// SetPolicy, without its hooks, for one that the Group has. Other policies stay. If one is not
// valid, nothing changes.
func SetPolicies(g *tiered.Group, all []Policy) error {
	var wrong []error
	for _, p := range all {
		wrong = append(wrong, p.Validate())
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	for _, p := range all {
		l := Of(g, p.Name)
		if l == nil {
			if _, err := New(g, p); err != nil {
				return err
			}
			continue
		}
		before := l.policy.Load()
		p.Refused, p.Lost = before.Refused, before.Lost
		if err := l.SetPolicy(p); err != nil {
			return err
		}
	}
	return nil
}

// join adds l to those of its Group.
func (l *Limiter) join(g *tiered.Group) {
	groups.Lock()
	defer groups.Unlock()
	if groups.of == nil {
		groups.of = map[*tiered.Group][]*Limiter{}
	}
	groups.of[g] = append(groups.of[g], l)
}

// part removes l from those of its Group, which is closing.
func (l *Limiter) part(g *tiered.Group) {
	groups.Lock()
	defer groups.Unlock()
	groups.of[g] = slices.DeleteFunc(groups.of[g], func(o *Limiter) bool { return o == l })
	if len(groups.of[g]) == 0 {
		delete(groups.of, g)
	}
}
