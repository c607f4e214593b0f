package tiered

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
)

// Decision is the result of one request. The zero Decision is a refusal.
type Decision struct {
	Allowed     bool
	Reason      Reason
	Tier        Tier
	LimitNumber uint8  // of the limit that refused, or has the fewest tokens: from 1, as [Limit.Each] has it; 0 for a single one
	Expired     bool   // if Canceled: the context's deadline passed
	Policy      string // name of the policy that decided
	Key         string `json:"-"` // as in the request; not in JSON, because it may be a secret
	Cost        int64  // tokens asked for, also if refused. Uses of one key count together

	// Burst is the most tokens that the key is ever admitted at once: the limit's burst, or what a
	// window holds. With several limits it is that of LimitNumber, as ResetAfter is.
	// [Limiter.LimitOf] returns the whole limit.
	Burst int64

	// Remaining estimates the tokens that are left, 0 … Burst: those held here and those last seen
	// in Redis. With several limits it is the fewest that any of them has. Limited and
	// FallbackSpent leave less than Cost, and with Standing what one request gets. While Redis does
	// not answer it is what the fallback has for Fallback and FallbackSpent, what was last seen for
	// Open, and what this process holds for Unavailable. For Canceled and InvalidKey it is 0.
	Remaining int64

	// RetryAfter is the time until a retry makes sense, if Limited or FallbackSpent. It is 0 for
	// other Reasons, and if the cost exceeds the fallback's burst.
	RetryAfter time.Duration

	// ResetAfter estimates when the bucket would be full again without further requests: from
	// Remaining or, if it owes, from RetryAfter, which knows how much. It is never less than
	// RetryAfter. For a window it is an upper bound. The standing share of a token bucket may be full
	// later than that: an empty one takes burst ÷ rate, whatever Remaining says.
	ResetAfter time.Duration
}

// Reason says why a request was admitted or refused.
type Reason uint8

// The reasons. Granted, Fallback, Open and Shadowed admit; the others refuse.
const (
	Unknown       Reason = iota // nothing was decided: the zero Decision (ErrUnavailable; HTTP 503)
	Granted                     // within the limit
	Fallback                    // Redis does not answer, and this process' fallback admits the request (FailLocal)
	Open                        // Redis does not answer, and everything is admitted (FailOpen)
	Shadowed                    // the policy would refuse, but is only tried out (Policy.Shadow)
	Limited                     // over the limit: retry after RetryAfter (HTTP 429)
	FallbackSpent               // Redis does not answer, and this process' fallback is used up (429): see RetryAfter
	Unavailable                 // Redis does not answer, and nothing is admitted (FailClosed; 503)
	ExceedsBurst                // costs more than the burst, which is 0 for Blocked: never granted
	InvalidKey                  // the key is empty or longer than 64 KiB (400)
	InvalidCost                 // the cost is not positive (503: the client cannot help it)
	Canceled                    // the caller's context was canceled, or had ended before: by its deadline if Expired (503)
)

var reasons = [...]string{
	Unknown: "unknown", Granted: "granted", Fallback: "fallback", Open: "open", Shadowed: "shadowed", Limited: "limited",
	FallbackSpent: "fallback spent",
	Unavailable:   "unavailable", ExceedsBurst: "exceeds burst", InvalidKey: "invalid key", InvalidCost: "invalid cost",
	Canceled: "canceled",
}

// String returns one or two words in lower case, for logs and metrics.
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Tier says where a request was decided. The zero Tier is nowhere.
type Tier uint8

// The tiers.
const (
	_        Tier = iota
	Local         // in this process: from a lease or a standing share, or because the key is known to be denied
	Remote        // by Redis, for this request
	Failover      // by the fail mode, because Redis does not answer
)

var tiers = [...]string{"none", Local: "local", Remote: "remote", Failover: "failover"}

// String returns a word in lower case.
func (t Tier) String() string {
	if int(t) < len(tiers) {
		return tiers[t]
	}
	return fmt.Sprintf("tier %d", uint8(t))
}

// The errors for errors.Is. Of other refusals the Reason says what is wrong.
var (
	ErrLimited     = errors.New("tiered: over the limit")                // Limited and FallbackSpent (HTTP 429)
	ErrUnavailable = errors.New("tiered: the limiter cannot decide now") // Unavailable and Unknown (503)
)

// Err returns nil if d allows, and otherwise a *[LimitedError].
func (d Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return &LimitedError{Decision: d}
}

// String says how the request was decided, without the key, as in `refused by policy "api":
// limited, remote, cost 3, 1 of 10 left, retry after 12s, full in 54s`.
func (d Decision) String() string {
	s := fmt.Sprintf("%s, %v, cost %d", d.verdict(), d.Tier, d.Cost)
	switch {
	case d.Burst == math.MaxInt64:
		s += ", no limit"
	case d.Burst > 0:
		s += fmt.Sprintf(", %d of %d left", d.Remaining, d.Burst)
	}
	if d.RetryAfter > 0 {
		s += fmt.Sprintf(", retry after %v", d.RetryAfter)
	}
	if d.ResetAfter > 0 {
		s += fmt.Sprintf(", full in %v", d.ResetAfter)
	}
	return s
}

// verdict says whether d admits, and why, as in `refused by policy "api": limited by limit 2`.
func (d *Decision) verdict() string {
	s := "refused"
	if d.Allowed {
		s = "admitted"
	}
	if d.Policy != "" {
		s += fmt.Sprintf(" by policy %q", d.Policy)
	}
	s += ": " + d.Reason.String()
	if d.LimitNumber > 0 && !d.Allowed {
		s += fmt.Sprintf(" by limit %d", d.LimitNumber)
	}
	return s
}

// LogValue returns what belongs in a log, without the key.
func (d Decision) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("policy", d.Policy), slog.Bool("allowed", d.Allowed), slog.String("reason", d.Reason.String()),
		slog.String("tier", d.Tier.String()), slog.Int64("cost", d.Cost), slog.Int64("remaining", d.Remaining),
	}
	if d.RetryAfter > 0 {
		attrs = append(attrs, slog.Duration("retry_after", d.RetryAfter))
	}
	return slog.GroupValue(attrs...)
}

// LimitedError is a refusal as an error. errors.Is finds in it [ErrLimited] or [ErrUnavailable], or
// the error of the context, also if [Limiter.WaitN] did not wait because the deadline is too soon.
type LimitedError struct {
	Decision Decision
	late     bool // the wait could not end before its deadline
}

// Error says which policy refused, by which limit, and why, but not the key.
func (e *LimitedError) Error() string {
	if e == nil {
		return "<nil>"
	}
	d := &e.Decision
	if d.Reason == Unknown && d.Policy == "" {
		return "tiered: refused: unknown: the Limiter is nil or zero, or there are no uses"
	}
	s := "tiered: " + d.verdict()
	if e.late {
		s += ", and the context's deadline is sooner"
	}
	switch {
	case d.RetryAfter > 0:
		s += fmt.Sprintf(" (retry after %v)", d.RetryAfter)
	case d.Reason == InvalidKey:
		s += fmt.Sprintf(" (%d bytes: must be 1 to %d)", len(d.Key), defaults.MaxKeyLength)
	case d.Reason == InvalidCost:
		s += fmt.Sprintf(" (%d: must be 1 to 2^40)", d.Cost)
	case d.Reason == ExceedsBurst && d.Burst == 0:
		s += " (the key is blocked)"
	case d.Reason == ExceedsBurst:
		s += fmt.Sprintf(" (cost %d: must be at most %d)", d.Cost, d.Burst)
	}
	return s
}

// Unwrap returns what errors.Is finds.
func (e *LimitedError) Unwrap() []error {
	if e == nil {
		return nil
	}
	var is []error
	switch e.Decision.Reason {
	case Limited, FallbackSpent:
		is = append(is, ErrLimited)
	case Unavailable, Unknown:
		is = append(is, ErrUnavailable)
	case Canceled:
		if e.Decision.Expired {
			return []error{context.DeadlineExceeded}
		}
		return []error{context.Canceled}
	}
	if e.late {
		is = append(is, context.DeadlineExceeded)
	}
	return is
}
