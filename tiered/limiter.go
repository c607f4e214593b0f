package tiered

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Limiter decides by one policy. All methods may be called concurrently. The zero Limiter and a nil one refuse.
type Limiter struct {
	core      engine.Limiter
	group     *Group
	policy    atomic.Pointer[Policy]
	ownsGroup bool // made by New, so Close closes the Group

	setMu sync.Mutex // one SetPolicy at a time

	mu     sync.Mutex
	others otherLimits // processes with other limits
	split  splitUse    // whether all processes split the limits

	unknownPlans atomic.Int64 // requests with a plan that the policy does not have
	removed      atomic.Bool  // by SetPolicies
	was          *Policy      // the last policy before it was removed; guarded by the mutex of the Group's limiters
}

// place returns the place of the policy among those that this process announces, -1 if it is removed.
func (l *Limiter) place() int { return int(l.core.Place.Load()) }

func newLimiter(g *Group, number int, p Policy) *Limiter {
	l := &Limiter{group: g}
	l.core.Group, l.core.Number, l.core.Name, l.core.Kind = g.core, number, p.Name, p.kind()
	l.set(p)
	return l
}

// New returns a Limiter with a Group of its own; its Close closes both. See [NewGroup] and [Group.NewLimiter].
func New(s remote.Store, p Policy, o *Options) (*Limiter, error) {
	if err := p.Validate(); err != nil {
		_, optionsErr := o.fill()
		return nil, errors.Join(err, optionsErr, remote.Check(s))
	}
	g, err := NewGroup(s, o)
	if err != nil {
		return nil, err
	}
	l, err := g.NewLimiter(p)
	if err != nil {
		return nil, err
	}
	l.ownsGroup = true
	return l, nil
}

// Group returns the Group of the Limiter, also if [New] made it: for [Group.Stats] and [Group.Ping]. It is nil if the
// Limiter is nil or zero.
func (l *Limiter) Group() *Group {
	if l.isZero() {
		return nil
	}
	return l.group
}

// Close closes the Group of a Limiter made by [New], as [Group.Close] does. For one made by [Group.NewLimiter] it does
// nothing: close the Group.
func (l *Limiter) Close(ctx context.Context) error {
	if l.isZero() {
		return errZeroLimiter
	}
	if !l.ownsGroup {
		return nil
	}
	return l.group.Close(ctx)
}

// MaxKeyLength is the longest key, in bytes. Any bytes are legal.
const MaxKeyLength = 64 << 10

var _ = [1]struct{}{}[MaxKeyLength-engine.MaxKeyLength]
