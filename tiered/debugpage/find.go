package debugpage

import (
	"context"
	"maps"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// found is the state of one key in all policies.
type found struct {
	Name string // as it is shown
	Rows []state
}

// state is that of one limit of a key.
type state struct {
	Policy, Limit string
	tiered.Decision
	Err error // why the state is unknown
}

// find asks Redis for the state of a key, policy by policy. It blocks for at most Options.Budget
// for each.
func (p *page) find(ctx context.Context, key string) *found {
	f := &found{Name: p.name(key)}
	for _, name := range slices.Sorted(maps.Keys(p.group.Stats().Policies)) {
		l, ok := p.group.Limiter(name)
		if !ok {
			continue
		}
		each, err := l.PeekEach(ctx, key)
		if err != nil {
			f.Rows = append(f.Rows, state{Policy: name, Err: err})
		}
		for _, d := range each {
			s := state{Policy: name, Decision: d}
			if limit, ok := l.LimitOf(d); ok {
				s.Limit = tokensPer(limit)
			}
			f.Rows = append(f.Rows, s)
		}
	}
	return f
}

// Unlimited reports whether the key has no limit.
func (s state) Unlimited() bool { return s.Limit == "unlimited" }
