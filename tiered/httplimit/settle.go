package httplimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// settlementKey is the context key of a *settlement.
type settlementKey struct{}

// settlement is what a handler may correct.
type settlement struct {
	tiered.Reservation
	rules int
	of    []int // the rule of each reserved use
}

func withSettlement(ctx context.Context, t tiered.Reservation, rules []Rule, uses []use) context.Context {
	s := &settlement{Reservation: t, rules: len(rules), of: make([]int, len(uses))}
	for i, u := range uses {
		s.of[i] = u.rule
	}
	return context.WithValue(ctx, settlementKey{}, s)
}

// Settle corrects the cost of the request of ctx to the actual one: one number of tokens for each rule of the
// innermost middleware, in their order. Numbers of rules that did not apply to the request are ignored. A surplus
// is returned and a deficit is charged, as by [tiered.Reservation.Settle]. Only the first call counts. Settle may
// be called after the handler has answered, and does not block. If it returns an error, nothing was corrected.
func Settle(ctx context.Context, actual ...int64) error {
	var s *settlement
	if ctx != nil {
		s, _ = ctx.Value(settlementKey{}).(*settlement)
	}
	if s == nil {
		return errors.New("httplimit: the context is not of a request that was counted with Options.Settle")
	}
	if len(actual) != s.rules {
		return fmt.Errorf("httplimit: %d costs: must be one for each of %d rules", len(actual), s.rules)
	}
	costs := make([]int64, len(s.of))
	for i, rule := range s.of {
		costs[i] = actual[rule]
	}
	s.Reservation.Settle(costs...)
	return nil
}
