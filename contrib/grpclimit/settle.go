package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
)

// Settle corrects the cost of the call of ctx to the actual one, of each policy that actual names:
//
//	err := grpclimit.Settle(ctx, map[string]int64{"rows": rows})
//
// The policies are those of the innermost [Server] with [Options.Settle]. One that is not named
// keeps its cost. One whose rule did not apply to the call, or counts Messages in a stream, is
// ignored. A surplus is returned and a deficit is charged, as by [tiered.Reservation.Settle]; so is
// what a call of cost 0 has cost. Only the first correction of a call counts: this one comes before
// [Rule.Actual] and [Options.Counts]. Settle does not block. If it returns an error, nothing was
// corrected: a name is of no policy, or the call was settled before.
func Settle(ctx context.Context, actual map[string]int64) error {
	return rules.Settle[request](ctx, words, actual)
}

// ended returns or corrects the tokens of a call whose handler has returned. If a user's function
// panics, the cost stays as it is.
func (s *Server) ended(r request, st *rules.Settlement[request], end End) {
	of := st.Rules()
	if len(of) == 0 {
		return
	}
	field := "Options.Counts"
	defer func() {
		if v := recover(); v != nil {
			s.limit.report(field, v)
		}
	}()
	if s.o.Counts != nil && !s.o.Counts(codeOf(end.Err)) {
		st.Cancel()
		return
	}
	actual := map[int]int64{}
	for _, i := range of {
		if f := s.limit.list[i].Actual; f != nil {
			field = fmt.Sprintf("rules[%d].Actual", i)
			actual[i] = f(r.ctx, r.call, end)
		}
	}
	if len(actual) > 0 {
		st.Correct(actual)
	}
}

// codeOf returns the code that gRPC sends for the error of a handler.
func codeOf(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return status.FromContextError(err).Code()
}
