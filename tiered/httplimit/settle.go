package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// settlementKey is the context key of a *settlement.
type settlementKey struct{}

// settlement is what a request has taken, and what may correct it, once: its handler, or Counts.
type settlement struct {
	reserved tiered.Reservation
	of       []int // the rule of each reserved use
	free     []use // those that have taken nothing
	rules    int
	ended    atomic.Bool

	request any         // what canonical.Request says
	outer   *settlement // of another reading of the same request, or nil
}

// withSettlement returns r with what Settle needs, also if no rule applies to it: otherwise Settle would correct what an
// outer middleware has taken.
func (l *limit) withSettlement(r *http.Request, t tiered.Reservation, uses, free []use) (*http.Request, *settlement) {
	ctx := r.Context()
	s := &settlement{
		reserved: t, of: make([]int, len(uses)), free: free, rules: len(l.rules), request: ctx.Value(canonical.Request{}),
	}
	for i, u := range uses {
		s.of[i] = u.rule
	}
	if outer, ok := ctx.Value(settlementKey{}).(*settlement); ok && s.request != nil && outer.request == s.request {
		s.outer = outer
	}
	return r.WithContext(context.WithValue(ctx, settlementKey{}, s)), s
}

// end reports true once.
func (s *settlement) end() bool { return !s.ended.Swap(true) }

// settle corrects the cost of each rule.
func (s *settlement) settle(actual []int64) {
	if !s.end() {
		return
	}
	costs := make([]int64, len(s.of))
	for i, rule := range s.of {
		costs[i] = actual[rule]
	}
	s.reserved.Settle(costs...)
	for _, u := range s.free {
		if n := min(actual[u.rule], maxCharge); n > 0 {
			_ = u.of(n).Charge() // cannot fail: uses has checked the key
		}
	}
}

// maxCharge is the most that can be charged at once.
const maxCharge = 1 << 40

// Settle corrects the cost of the request of ctx to the actual one: one number of tokens for each rule of the
// innermost middleware, in their order. Numbers of rules that did not apply to the request are ignored. A surplus
// is returned and a deficit is charged, as by [tiered.Reservation.Settle]; so is what a request of cost 0 has cost. Only the
// first call counts. Settle may be called after the handler has answered, and does not block. If it returns an error, nothing
// was corrected. Of a request that package policyfile has limited by several routes, all with this number of rules are
// corrected.
func Settle(ctx context.Context, actual ...int64) error {
	var s *settlement
	if ctx != nil {
		s, _ = ctx.Value(settlementKey{}).(*settlement)
	}
	if s == nil {
		return errors.New("httplimit: the context is not of a request that was counted with Options.Settle")
	}
	settled := false
	for one := s; one != nil; one = one.outer {
		if len(actual) == one.rules {
			one.settle(actual)
			settled = true
		}
	}
	if !settled {
		return fmt.Errorf("httplimit: %d costs: must be one for each of %d rules", len(actual), s.rules)
	}
	return nil
}
