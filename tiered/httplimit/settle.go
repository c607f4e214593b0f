package httplimit

import (
	"context"
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
)

// Settle corrects the cost of the request of ctx to the actual one, of each policy that actual
// names:
//
//	err := httplimit.Settle(r.Context(), map[string]int64{"tokens": used})
//
// The policies are those of the innermost middleware. One that is not named keeps its cost, and one
// whose rule did not apply to the request is ignored. A surplus is returned and a deficit is
// charged, as by [tiered.Reservation.Settle]; so is what a request of cost 0 has cost. Settle may
// be called after the handler has answered, and does not block. If it returns an error, nothing was
// corrected: no policy has the name, or the request was settled before. The first call counts. If
// package policyfile has limited the request by several routes, all routes with these policies are
// corrected.
func Settle(ctx context.Context, actual map[string]int64) error {
	return rules.Settle[*http.Request](ctx, words, actual)
}
