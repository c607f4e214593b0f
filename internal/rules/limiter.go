package rules

import (
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Limiter is one of the user, with a copy of its policy, which is made anew when that has changed:
// a policy may have a thousand plans. A nil one has the zero policy.
type Limiter struct {
	*tiered.Limiter
	copied atomic.Pointer[policy]
}

// policy is a copy of a policy. Nobody may write to it.
type policy struct {
	tiered.Policy
	revision int64
}

var noPolicy tiered.Policy

// Of returns what rules count by, and nil for nil.
func Of(l *tiered.Limiter) *Limiter {
	if l == nil {
		return nil
	}
	return &Limiter{Limiter: l}
}

// Policy returns the policy. Nobody may write to it.
func (l *Limiter) Policy() *tiered.Policy {
	if l == nil {
		return &noPolicy
	}
	revision := l.Revision() // before the policy: a change between the two is seen the next time
	p := l.copied.Load()
	if p == nil || p.revision != revision {
		p = &policy{l.Limiter.Policy(), revision}
		l.copied.Store(p)
	}
	return &p.Policy
}
