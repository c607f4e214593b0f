package httplimit

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Ready returns a handler for a readiness check. It answers 503 until all Redis nodes of the Group
// have answered a check, and 200 for good from then on. The text of a 503 names each node that is
// missing and why, as [tiered.Group.Ping] does: a mistyped address, a refused password, a missing
// right. So such a mistake stops a rollout, and an outage later makes no replica unready, because
// the fail modes decide then.
//
// A service that is useless without Redis, because its policies fail closed, calls Ping in each
// check instead. A check of liveness must not ask Redis at all: a restart only loses leases.
func Ready(g *tiered.Group) http.Handler {
	var reached atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !reached.Load() {
			if err := g.Ping(r.Context()); err != nil {
				http.Error(w, fmt.Sprintf("not ready: %v", err), http.StatusServiceUnavailable)
				return
			}
			reached.Store(true)
		}
		_, _ = io.WriteString(w, "ready\n")
	})
}
