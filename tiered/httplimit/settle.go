package httplimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// takenKey is where a context has a *settlement.
type takenKey struct{}

// settlement is what a handler may correct.
type settlement struct {
	tiered.Reservation
	rules int
	of    []int // the rule of each use that was reserved
}

func withTaken(ctx context.Context, t tiered.Reservation, rules []Rule, uses []use) context.Context {
	s := &settlement{Reservation: t, rules: len(rules), of: make([]int, len(uses))}
	for i, u := range uses {
		s.of[i] = u.rule
	}
	return context.WithValue(ctx, takenKey{}, s)
}

// Settle corrects what the request of ctx cost to what it turned out to cost: one number of tokens for each rule of the
// innermost middleware, in their order; those of rules that did not apply to the request are ignored. What was too much
// goes back, what was too little is charged, as by [tiered.Reservation.Settle]. It counts once; it may be called after the
// handler has answered, and does not wait. An error means that nothing was corrected.
func Settle(ctx context.Context, actual ...int64) error {
	s, ok := ctx.Value(takenKey{}).(*settlement)
	if !ok {
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
