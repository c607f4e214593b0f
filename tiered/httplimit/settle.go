package httplimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// settlementKey is the context key of a *settlement.
type settlementKey struct{}

// settlement is what a request has taken, and what may correct it, once: its handler, or Counts.
type settlement struct {
	rules    []Rule
	costs    []int64 // of each rule, before
	reserved tiered.Reservation
	of       []int // the rule of each reserved use
	free     []use // those that have taken nothing
	ended    atomic.Bool

	request any         // what canonical.Request says
	outer   *settlement // of another reading of the same request, or nil
}

// withSettlement returns r with what Settle needs, also if no rule applies to it: otherwise Settle would correct what an
// outer middleware has taken.
func (l *limit) withSettlement(r *http.Request, t tiered.Reservation, uses, free []use) (*http.Request, *settlement) {
	ctx := r.Context()
	s := &settlement{
		rules: l.rules, costs: make([]int64, len(l.rules)), reserved: t, of: make([]int, len(uses)), free: free,
		request: ctx.Value(canonical.Request{}),
	}
	for i, u := range uses {
		s.of[i], s.costs[u.rule] = u.rule, u.cost
	}
	if outer, ok := ctx.Value(settlementKey{}).(*settlement); ok && s.request != nil && outer.request == s.request {
		s.outer = outer
	}
	return r.WithContext(context.WithValue(ctx, settlementKey{}, s)), s
}

// end reports true once.
func (s *settlement) end() bool { return !s.ended.Swap(true) }

// settle corrects the costs of the policies that actual names. It reports false if it has none of them, or is not the first
// to do so.
func (s *settlement) settle(actual map[string]int64) bool {
	costs, named := slices.Clone(s.costs), false
	for i := range s.rules {
		if n, ok := actual[s.rules[i].Limiter.Policy().Name]; ok {
			costs[i], named = n, true
		}
	}
	if !named || !s.end() {
		return false
	}
	reserved := make([]int64, len(s.of))
	for i, rule := range s.of {
		reserved[i] = costs[rule]
	}
	s.reserved.Settle(reserved...)
	for _, u := range s.free {
		if n := min(costs[u.rule], maxCharge); n > 0 {
			_ = u.of(n).Charge() // cannot fail: uses has checked the key
		}
	}
	return true
}

// maxCharge is the most that can be charged at once.
const maxCharge = 1 << 40

// Settle corrects the cost of the request of ctx to the actual one, of each policy that actual names:
//
//	err := httplimit.Settle(r.Context(), map[string]int64{"tokens": used})
//
// The policies are those of the innermost middleware. One that is not named keeps its cost, and one whose rule did not
// apply to the request is ignored. A surplus is returned and a deficit is charged, as by [tiered.Reservation.Settle];
// so is what a request of cost 0 has cost. Settle may be called after the handler has answered, and does not block. If
// it returns an error, nothing was corrected: a name is of no policy, or the request was settled before: the first call
// counts. Of a request that package policyfile has limited by several routes, all with these policies are corrected.
func Settle(ctx context.Context, actual map[string]int64) error {
	var s *settlement
	if ctx != nil {
		s, _ = ctx.Value(settlementKey{}).(*settlement)
	}
	if s == nil {
		return errors.New("httplimit: the context is not of a request that was counted with Options.Settle")
	}
	if err := s.check(actual); err != nil {
		return err
	}
	settled := false
	for ; s != nil; s = s.outer {
		settled = s.settle(actual) || settled
	}
	if !settled {
		return errors.New("httplimit: the request is settled: must be settled once, with all costs")
	}
	return nil
}

// check returns an error if actual names no policy, or one that no rule of the request has.
func (s *settlement) check(actual map[string]int64) error {
	var names []string
	for ; s != nil; s = s.outer {
		for i := range s.rules {
			names = append(names, s.rules[i].Limiter.Policy().Name)
		}
	}
	if len(actual) == 0 {
		return fmt.Errorf("httplimit: actual is empty: must have the cost of one policy at least, of %q", names)
	}
	for _, name := range slices.Sorted(maps.Keys(actual)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("httplimit: actual has policy %q: must be one of %q", name, names)
		}
	}
	return nil
}
