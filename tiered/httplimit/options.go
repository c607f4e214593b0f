package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
)

// Rule is one policy that applies to requests.
type Rule struct {
	// Limiter has the policy. Required, except with AtOnce. Each policy may be in one rule only,
	// except with [Next].
	Limiter *tiered.Limiter

	// AtOnce limits how many requests of the key run at the same time, if it is not nil. A request
	// takes its place first, and gives it back when the handler returns or panics, or when a rule
	// refuses it. With AtOnce the Limiter may be nil.
	AtOnce *atonce.Limiter

	// Key tells which client a request counts for. Required.
	Key Key

	// Missing says what happens to a request without a key: Refuse, Exempt, Together or Next.
	// Required.
	Missing Missing

	// Cost returns what a request costs, in tokens; nil means 1. A request that costs 0 passes the
	// rule uncounted. It is told what this process knows of the limit, see [tiered.Limiter.PeekN],
	// unless other rules count it. It passes even if the limit is spent; Settle charges what it has
	// cost. One that costs more than the burst is refused. A negative cost is a bug in Cost and is
	// answered with 503.
	Cost func(*http.Request) int64

	// Plan returns the name of the plan that a request has, one of the policy's Plans, or "" for
	// none: see [tiered.Use.WithPlan]. nil means Options.Plan. Read it from what was authenticated,
	// such as a token: a client that can choose the name can choose the limit.
	Plan func(*http.Request) string

	// Limit returns a limit that the request carries, as by a contract: see
	// [tiered.Use.WithLimit]. The zero Limit means that of the plan, or the policy's own. A policy
	// with Also must have none.
	Limit func(*http.Request) tiered.Limit

	// Skip lets a request pass the rule uncounted. nil skips none.
	Skip func(*http.Request) bool

	// Hidden keeps the limit out of the fields of Options.Headers and IETFDraft11, which then tell
	// of the other rules. It is for limits that a user cannot plan by, such as a limit of
	// addresses. A request that it refuses still gets Retry-After. A policy with Shadow is always
	// hidden.
	Hidden bool
}

// Options are the options of a middleware. A nil *Options, and each zero field, means the default.
// Functions are called concurrently.
type Options struct {
	// Skip lets a request pass all rules uncounted; see [Preflight]. nil skips none.
	Skip func(*http.Request) bool

	// Plan is Rule.Plan for all rules without one, and called once for a request: a plan may have a
	// limit per minute and one per month, in two policies. A policy without Plans goes by its own
	// limit.
	Plan func(*http.Request) string

	// Counts reports whether an answer with this status counts. If not, the tokens are returned
	// when the handler returns. While it runs they are taken, so that a crowd cannot pass before
	// the first answer. A hijacked connection counts as status 101. If a handler panics, nothing is
	// returned: a client that can make it panic must not get free requests. nil counts every
	// answer.
	Counts func(status int) bool

	// Refused is told of each refused request before it is answered, as otellimit.Record wants it.
	// It may run concurrently, and the answer waits for it. nil tells nobody.
	Refused func(context.Context, tiered.Decision)

	// Denied writes the answer to a refused request. The headers are set. If Denied writes no
	// status, the status is Refusal.Status. nil writes a line of text.
	Denied func(http.ResponseWriter, *http.Request, Refusal)

	// Problem answers refusals as application/problem+json (RFC 9457), with the problem types of
	// the IETF draft that IETFDraft11 names. With IETFDraft11, which tells the names of policies,
	// violated-policies has the name of the one that refused; otherwise, and if all places are
	// taken, it is left out. Denied, if set, answers instead.
	Problem bool

	// Headers selects the fields that state the limit. The zero Headers is X-RateLimit-Limit,
	// -Remaining and -Reset.
	Headers Headers

	// IETFDraft11 adds RateLimit-Policy and RateLimit as in draft-ietf-httpapi-ratelimit-headers-11
	// of 2026-05-23. These fields tell clients the names of the policies. This is not a standard,
	// and the next revision may change the names.
	IETFDraft11 bool

	// Jitter is the largest random time that is added to Retry-After, so that clients that were
	// refused together do not come back together: 0 … 1 h.
	Jitter time.Duration

	// Random returns the jitter's random numbers in [0, 1). nil means math/rand/v2.
	Random func() float64

	// Settle lets the handler correct the cost once it is known: see [Settle]. The handler then
	// gets a copy of the request. What it or an inner mux sets in the copy, such as Pattern, is not
	// seen outside.
	Settle bool
}

// maxJitter is longer than any Retry-After that a client waits for.
const maxJitter = time.Hour

// fill validates rules and options, reports all problems at once, and fills in the defaults.
func fill(list []Rule, o *Options) (f Options, counted []rules.Rule[*http.Request], err error) {
	if o != nil {
		f = *o
	}
	for i, r := range list {
		counted = append(counted, rules.Rule[*http.Request]{
			Limiter: rules.Of(r.Limiter), AtOnce: r.AtOnce, Key: r.Key.key, Missing: rules.Missing(r.Missing), Cost: r.Cost, Plan: r.Plan, Limit: r.Limit,
			Skip: r.Skip, Settles: f.Settle, Hidden: r.Hidden, Number: i,
		})
	}
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf("httplimit: "+format, args...)) }
	rules.SharePlan(counted, f.Plan, bad)
	rules.Check(counted, words, bad)
	if f.Jitter < 0 || f.Jitter > maxJitter {
		bad("Options.Jitter is %v: must be 0 to 1h", f.Jitter)
	}
	if p := f.Headers.Prefix; p != "" && (!isToken(p) || strings.HasSuffix(p, "-")) {
		bad("Options.Headers.Prefix is %q: must be the beginning of a header field's name, as X-RateLimit is, to which -Limit is added", p)
	}
	if f.Random == nil {
		f.Random = rand.Float64
	}
	return f, counted, errors.Join(all...)
}

// Preflight reports whether a request is a browser's CORS preflight: OPTIONS with Origin and
// Access-Control-Request-Method. Browsers send it without credentials. Anyone can send such
// requests: skip them only if they are cheap to answer.
func Preflight(r *http.Request) bool {
	return r != nil && r.Method == http.MethodOptions && r.Header.Get("Origin") != "" &&
		r.Header.Get("Access-Control-Request-Method") != ""
}
