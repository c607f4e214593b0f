package rules

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Settlement is what a request R has taken, and what may correct it, once: its handler, or what is
// known when that has returned.
type Settlement[R any] struct {
	rules    []Rule[R]
	costs    []int64 // of each rule, before
	reserved tiered.Reservation
	of       []int // the rule of each reserved use
	free     []Use // those that have taken nothing
	ended    atomic.Bool

	request any            // what canonical.Request says
	outer   *Settlement[R] // of another reading of the same request, or nil
}

// settlementKey is the context key of a *Settlement[R].
type settlementKey[R any] struct{}

// NewSettlement returns what a request has taken, and a context with it for Settle. Requests to
// which no rule applies have one too: otherwise Settle would correct what an outer middleware has
// taken.
func NewSettlement[R any](
	ctx context.Context, all []Rule[R], t tiered.Reservation, uses, free []Use,
) (*Settlement[R], context.Context) {
	s := &Settlement[R]{
		rules: all, costs: make([]int64, len(all)), reserved: t, of: make([]int, len(uses)), free: free,
		request: ctx.Value(canonical.Request{}),
	}
	for i, u := range uses {
		s.of[i], s.costs[u.Rule] = u.Rule, u.Cost
	}
	if outer, ok := ctx.Value(settlementKey[R]{}).(*Settlement[R]); ok && s.request != nil && outer.request == s.request {
		s.outer = outer
	}
	return s, context.WithValue(ctx, settlementKey[R]{}, s)
}

// Rules returns the numbers of the rules that count the request.
func (s *Settlement[R]) Rules() []int {
	of := slices.Clone(s.of)
	for _, u := range s.free {
		of = append(of, u.Rule)
	}
	return of
}

// Cancel gives everything back, unless the request is settled.
func (s *Settlement[R]) Cancel() {
	if s.end() {
		s.reserved.Cancel()
	}
}

// end reports true once.
func (s *Settlement[R]) end() bool { return !s.ended.Swap(true) }

// Correct corrects the costs of the rules that actual names by their numbers. It reports false if
// it is not the first to do so.
func (s *Settlement[R]) Correct(actual map[int]int64) bool {
	if !s.end() {
		return false
	}
	costs := slices.Clone(s.costs)
	for i, n := range actual {
		costs[i] = n
	}
	reserved := make([]int64, len(s.of))
	for i, rule := range s.of {
		reserved[i] = costs[rule]
	}
	s.reserved.Settle(reserved...)
	for _, u := range s.free {
		if n := min(costs[u.Rule], maxCharge); n > 0 {
			_ = u.of(n).Charge() // cannot fail: Collect has checked the key
		}
	}
	return true
}

// maxCharge is the most that can be charged at once.
const maxCharge = 1 << 40

// Settle corrects the cost of the request of ctx to the actual one, of each policy that actual
// names.
func Settle[R any](ctx context.Context, w Words, actual map[string]int64) error {
	var s *Settlement[R]
	if ctx != nil {
		s, _ = ctx.Value(settlementKey[R]{}).(*Settlement[R])
	}
	if s == nil {
		return fmt.Errorf("%s: the context is not of a %s that was counted with Options.Settle", w.Package, w.Request)
	}
	if err := s.check(actual); err != nil {
		return fmt.Errorf("%s: %w", w.Package, err)
	}
	settled := false
	for ; s != nil; s = s.outer {
		costs := map[int]int64{}
		for i := range s.rules {
			if n, ok := actual[s.rules[i].Limiter.Policy().Name]; ok && s.rules[i].Limiter != nil {
				costs[i] = n
			}
		}
		settled = len(costs) > 0 && s.Correct(costs) || settled
	}
	if !settled {
		return fmt.Errorf("%s: the %s is settled: must be settled once, with all costs", w.Package, w.Request)
	}
	return nil
}

// check returns an error if actual names no policy, or one that no rule of the request has.
func (s *Settlement[R]) check(actual map[string]int64) error {
	var names []string
	for ; s != nil; s = s.outer {
		for i := range s.rules {
			if s.rules[i].Limiter != nil { // otherwise the rule has places only
				names = append(names, s.rules[i].Limiter.Policy().Name)
			}
		}
	}
	if len(actual) == 0 {
		return fmt.Errorf("actual is empty: must have the cost of one policy at least, of %q", names)
	}
	for _, name := range slices.Sorted(maps.Keys(actual)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("actual has policy %q: must be one of %q", name, names)
		}
	}
	return nil
}
