package grpclimit

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

func (l *limit) withSettlement(ctx context.Context, t tiered.Reservation, uses []use) context.Context {
	s := &settlement{Reservation: t, rules: len(l.rules), of: make([]int, len(uses))}
	for i, u := range uses {
		s.of[i] = u.rule
	}
	return context.WithValue(ctx, settlementKey{}, s)
}

// Settle corrects the cost of the call of ctx to the actual one: one number of tokens for each rule of the innermost
// [Server] with [Options.Settle], in their order. It ignores the numbers of rules that did not apply to the call, and of
// rules with Messages in a stream. A surplus is returned and a deficit is charged, as by
// [tiered.Reservation.Settle]. Only the first correction of a call counts: this one comes before [Rule.Actual] and
// [Options.Counts]. Settle does not block. If it returns an error, nothing was corrected.
func Settle(ctx context.Context, actual ...int64) error {
	var s *settlement
	if ctx != nil {
		s, _ = ctx.Value(settlementKey{}).(*settlement)
	}
	if s == nil {
		return errors.New("grpclimit: the context is not of a call that was counted with Options.Settle")
	}
	if len(actual) != s.rules {
		return fmt.Errorf("grpclimit: %d costs: must be one for each of %d rules", len(actual), s.rules)
	}
	costs := make([]int64, len(s.of))
	for i, rule := range s.of {
		costs[i] = actual[rule]
	}
	s.Reservation.Settle(costs...)
	return nil
}

// ended returns or corrects the tokens of a call whose handler has returned. If a user's function panics, the cost
// stays as it is.
func (s *Server) ended(r request, t tiered.Reservation, uses []use, end End) {
	if len(uses) == 0 {
		return
	}
	field := "Options.Counts"
	defer func() {
		if v := recover(); v != nil {
			s.limit.report(field, v)
		}
	}()
	if s.o.Counts != nil && !s.o.Counts(codeOf(end.Err)) {
		t.Cancel()
		return
	}
	actual := false
	costs := make([]int64, len(uses))
	for i, u := range uses {
		costs[i] = u.cost
		if rule := &s.limit.rules[u.rule]; rule.Actual != nil {
			field = fmt.Sprintf("rules[%d].Actual", u.rule)
			costs[i], actual = rule.Actual(r.ctx, r.call, end), true
		}
	}
	if actual {
		t.Settle(costs...)
	}
}

// codeOf returns the code that gRPC sends for the error of a handler.
func codeOf(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return status.FromContextError(err).Code()
}
