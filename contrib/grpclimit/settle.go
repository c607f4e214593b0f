package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// settlementKey is the context key of a *settlement.
type settlementKey struct{}

// settlement is what a call has taken, and what may correct it, once: its handler, Counts or Actual.
type settlement struct {
	reserved tiered.Reservation
	uses     []use // those that are reserved
	free     []use // those that have taken nothing
	rules    []Rule
	ended    atomic.Bool
}

func (l *limit) settlement(t tiered.Reservation, uses, free []use) *settlement {
	return &settlement{reserved: t, uses: slices.Clone(uses), free: free, rules: l.rules}
}

// in returns a context with what Settle needs. Calls to which no rule applies have it too: otherwise Settle would correct
// what an outer Server has taken.
func (s *settlement) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, settlementKey{}, s)
}

// end reports true once.
func (s *settlement) end() bool { return !s.ended.Swap(true) }

// costs returns what the call has taken by each rule.
func (s *settlement) costs() []int64 {
	all := make([]int64, len(s.rules))
	for _, u := range s.uses {
		all[u.rule] = u.cost
	}
	return all
}

// settle corrects the cost of each rule. It reports false if that was done before.
func (s *settlement) settle(actual []int64) bool {
	if !s.end() {
		return false
	}
	costs := make([]int64, len(s.uses))
	for i, u := range s.uses {
		costs[i] = actual[u.rule]
	}
	s.reserved.Settle(costs...)
	for _, u := range s.free {
		if n := min(actual[u.rule], maxCharge); n > 0 {
			_ = u.of(n).Charge() // cannot fail: uses has checked the key
		}
	}
	return true
}

// maxCharge is the most that can be charged at once.
const maxCharge = 1 << 40

// Settle corrects the cost of the call of ctx to the actual one, of each policy that actual names:
//
//	err := grpclimit.Settle(ctx, map[string]int64{"rows": rows})
//
// The policies are those of the innermost [Server] with [Options.Settle]. One that is not named keeps its cost. One
// whose rule did not apply to the call, or counts Messages in a stream, is ignored. A surplus is returned and a deficit
// is charged, as by [tiered.Reservation.Settle]; so is what a call of cost 0 has cost. Only the first correction of a
// call counts: this one comes before [Rule.Actual] and [Options.Counts]. Settle does not block. If it returns an error,
// nothing was corrected: a name is of no policy, or the call was settled before.
func Settle(ctx context.Context, actual map[string]int64) error {
	var s *settlement
	if ctx != nil {
		s, _ = ctx.Value(settlementKey{}).(*settlement)
	}
	if s == nil {
		return errors.New("grpclimit: the context is not of a call that was counted with Options.Settle")
	}
	names := make([]string, len(s.rules))
	for i := range s.rules {
		names[i] = s.rules[i].Limiter.Policy().Name
	}
	if len(actual) == 0 {
		return fmt.Errorf("grpclimit: actual is empty: must have the cost of one policy at least, of %q", names)
	}
	costs := s.costs()
	for _, name := range slices.Sorted(maps.Keys(actual)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("grpclimit: actual has policy %q: must be one of %q", name, names)
		}
	}
	for i, name := range names {
		if n, ok := actual[name]; ok {
			costs[i] = n
		}
	}
	if !s.settle(costs) {
		return errors.New("grpclimit: the call is settled: must be settled once, with all costs")
	}
	return nil
}

// ended returns or corrects the tokens of a call whose handler has returned. If a user's function panics, the cost
// stays as it is.
func (s *Server) ended(r request, st *settlement, end End) {
	if len(st.uses)+len(st.free) == 0 {
		return
	}
	field := "Options.Counts"
	defer func() {
		if v := recover(); v != nil {
			s.limit.report(field, v)
		}
	}()
	if s.o.Counts != nil && !s.o.Counts(codeOf(end.Err)) {
		if st.end() {
			st.reserved.Cancel()
		}
		return
	}
	known, actual := false, st.costs()
	for _, uses := range [][]use{st.uses, st.free} {
		for _, u := range uses {
			if rule := &s.limit.rules[u.rule]; rule.Actual != nil {
				field = fmt.Sprintf("rules[%d].Actual", u.rule)
				actual[u.rule], known = rule.Actual(r.ctx, r.call, end), true
			}
		}
	}
	if known {
		st.settle(actual)
	}
}

// codeOf returns the code that gRPC sends for the error of a handler.
func codeOf(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return status.FromContextError(err).Code()
}
