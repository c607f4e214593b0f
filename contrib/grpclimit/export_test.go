package grpclimit

import (
	"strings"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Pushback returns the trailer that tells a client when to retry a refusal. The tests see it of
// Decisions that no limit gives in their time: one after 292 years, one without a time.
func Pushback(d tiered.Decision) string {
	return strings.Join(new(Server).refusal(newError(request{}, d, nil))[fieldPushback], "+")
}
