package httplimit

import (
	"net/http"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// WriteFields writes the fields that a middleware with the options o writes for a request that l
// decided about, or nobody. The tests see it of Decisions that no Limiter makes in their time: any
// numbers and each Reason.
func WriteFields(h http.Header, o Options, l *tiered.Limiter, d tiered.Decision) {
	var uses []rules.Use
	if l != nil {
		uses = []rules.Use{{Limiter: rules.Of(l), Key: "k", Cost: 1}}
	}
	(&limit{Options: o, names: o.Headers.names()}).headers(h, uses, &d, nil)
}
