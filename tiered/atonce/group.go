package atonce

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// named are the Limiters of Groups that are not closed, each under its name; of two the older one.
var named sync.Map // of *Limiter

type ofGroup struct {
	group *tiered.Group
	name  string
}

// Of returns the Limiter of a Group by the name of its policy, or nil.
func Of(g *tiered.Group, name string) *Limiter {
	l, _ := named.Load(ofGroup{g, name})
	limiter, _ := l.(*Limiter)
	return limiter
}

// SetPolicies gives a Group these policies, as those of a file: by New for a new name, and by
// SetPolicy, without its hooks, for one that the Group has. Other policies stay. If one is not
// valid, nothing changes.
func SetPolicies(g *tiered.Group, all []Policy) error {
	var wrong []error
	seen := map[string]bool{}
	for _, p := range all {
		if wrong = append(wrong, p.Validate()); seen[p.Name] {
			wrong = append(wrong, fmt.Errorf("atonce: Policy.Name is %.80q: must differ from the names of the other policies", p.Name))
		}
		seen[p.Name] = true
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
