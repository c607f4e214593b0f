package httplimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/internal/canonical"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// settlementKey is the context key of a *settlement.
type settlementKey struct{}

// settlement is what a handler may correct.
type settlement struct {
	tiered.Reservation
	rules int
	of    []int // the rule of each reserved use

	request any         // what canonical.Request says
	outer   *settlement // of another reading of the same request, or nil
}

func withSettlement(ctx context.Context, t tiered.Reservation, rules []Rule, uses []use) context.Context {
	s := &settlement{Reservation: t, rules: len(rules), of: make([]int, len(uses)), request: ctx.Value(canonical.Request{})}
	for i, u := range uses {
		s.of[i] = u.rule
	}
	if outer, ok := ctx.Value(settlementKey{}).(*settlement); ok && s.request != nil && outer.request == s.request {
		s.outer = outer
	}
	return context.WithValue(ctx, settlementKey{}, s)
}

// Settle corrects the cost of the request of ctx to the actual one: one number of tokens for each rule of the
// innermost middleware, in their order. Numbers of rules that did not apply to the request are ignored. A surplus
// is returned and a deficit is charged, as by [tiered.Reservation.Settle]. Only the first call counts. Settle may
// be called after the handler has answered, and does not block. If it returns an error, nothing was corrected. Of a request
// that package policyfile has limited by several routes, all with this number of rules are corrected.
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
		if len(actual) != one.rules {
			continue
		}
		costs := make([]int64, len(one.of))
		for i, rule := range one.of {
			costs[i] = actual[rule]
		}
		one.Reservation.Settle(costs...)
		settled = true
	}
	if !settled {
		return fmt.Errorf("httplimit: %d costs: must be one for each of %d rules", len(actual), s.rules)
	}
	return nil
}
