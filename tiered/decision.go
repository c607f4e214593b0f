package tiered

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Decision is the answer to one request. The zero Decision is a refusal.
type Decision struct {
	Allowed bool
	Reason  Reason
	Tier    Tier

	// Which is, of several limits on a key, the one that refused, else the tightest: 1 is Policy.Limit, 2 Also[0], …; 0 of one
	// limit.
	Which uint8

	Expired bool // when Canceled: by the context's deadline

	Policy string // name of the policy that decided
	Key    string // as it was asked for

	// Limit is the limit's burst, in tokens: of several, that of Which; where a cost exceeds what a shard holds, that
	// (Policy.Shards).
	Limit int64

	// Remaining is the tokens held here and last seen in Redis: an estimate in 0 … Limit; of Shards, from one of them. It is known
	// of what was decided, and of what costs more than the burst or nothing at all.
	Remaining int64

	// RetryAfter is, when Limited or ShareSpent, when asking again makes sense; 0 for a cost above the share's burst.
	RetryAfter time.Duration

	// ResetAfter is when the bucket would be full again, if nobody asked: an estimate from Remaining; of a window, at the
	// latest, and with Shards of a SlidingWindow, of one shard: another may count for longer.
	ResetAfter time.Duration
}

// Reason says why a Decision is what it is.
type Reason uint8

// The reasons. Granted, Shared, Open and Shadowed allow; the others refuse.
const (
	Unknown      Reason = iota // nothing was decided: the zero Decision
	Granted                    // within the limit
	Shared                     // Redis does not answer, and this process' share of the limit admits it (FailLocal)
	Open                       // Redis does not answer, and everything is admitted (FailOpen)
	Shadowed                   // it would be refused, but the policy is tried out (Policy.Shadow)
	Limited                    // over the limit: ask again after RetryAfter (HTTP 429)
	ShareSpent                 // Redis does not answer, and this process' share is used up: RetryAfter tells (429)
	Unavailable                // Redis does not answer, and nothing is admitted (FailClosed; 503)
	ExceedsBurst               // costs more than the burst, which is 0 when Blocked: never granted
	InvalidKey                 // the key is empty or longer than MaxKeyLength
	InvalidCost                // the cost is not positive
	Canceled                   // the caller's context ended while it waited: by its deadline if Expired, else it was canceled
)

var reasons = [...]string{
	Unknown: "unknown", Granted: "granted", Shared: "shared", Open: "open", Shadowed: "shadowed", Limited: "limited", ShareSpent: "share spent",
	Unavailable: "unavailable", ExceedsBurst: "exceeds burst", InvalidKey: "invalid key", InvalidCost: "invalid cost",
	Canceled: "canceled",
}

// String returns a word or two in lower case: a label for logs and metrics.
func (r Reason) String() string {
	if int(r) < len(reasons) {
		return reasons[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Tier says where a Decision was made.
type Tier uint8

// The tiers.
const (
	None     Tier = iota // nowhere: the request could not be decided
	Local                // in this process: from a lease, or from what is known to be denied
	Remote               // by Redis, asked for this request
	Failover             // by the fail mode, because Redis does not answer
)

var tiers = [...]string{None: "none", Local: "local", Remote: "remote", Failover: "failover"}

// String returns a word in lower case.
func (t Tier) String() string {
	if int(t) < len(tiers) {
		return tiers[t]
	}
	return fmt.Sprintf("tier %d", uint8(t))
}

// The errors that a refusal is, by errors.Is. The HTTP status that suits each is in parentheses.
var (
	ErrLimited      = errors.New("tiered: over the limit")                   // Limited and ShareSpent (429)
	ErrUnavailable  = errors.New("tiered: the limiter cannot decide now")    // (503)
	ErrExceedsBurst = errors.New("tiered: costs more than the burst")        // (429 without Retry-After)
	ErrInvalid      = errors.New("tiered: the key or the cost is not valid") // (400)
)

// Err returns nil for a Decision that allows, else a *[LimitedError]. Where the caller's context ended that is what the
// context's Err is too, by errors.Is: context.DeadlineExceeded or context.Canceled.
func (d Decision) Err() error {
	if d.Allowed {
		return nil
	}
	return &LimitedError{Decision: d}
}

// LimitedError is a refusal as an error. errors.Is finds [ErrLimited], [ErrUnavailable], [ErrExceedsBurst], [ErrInvalid],
// context.Canceled or, of a context whose deadline passed, context.DeadlineExceeded in it. It finds that one too where
// [Limiter.WaitN] did not wait for a deadline that is too soon.
type LimitedError struct {
	Decision Decision
	late     bool // who waited could not be served before its deadline
}

// Is reports that a wait that its deadline forbids is a context.DeadlineExceeded, though it has not passed: it is the
// same to whoever waits.
func (e *LimitedError) Is(target error) bool { return e.late && target == context.DeadlineExceeded }

// Error says which policy refused, of several limits by which, and why. It does not repeat the key, which may be a secret.
func (e *LimitedError) Error() string {
	d := &e.Decision
	s := fmt.Sprintf("tiered: refused by policy %q: %s", d.Policy, d.Reason)
	if d.Which > 0 {
		s += fmt.Sprintf(" by limit %d", d.Which)
	}
	if e.late {
		s += ", and the context's deadline is sooner"
	}
	if d.RetryAfter > 0 {
		s += fmt.Sprintf(" (retry after %v)", d.RetryAfter)
	}
	return s
}

// Unwrap returns the sentinel that stands for the Decision's reason.
func (e *LimitedError) Unwrap() error {
	switch e.Decision.Reason {
	case Limited, ShareSpent:
		return ErrLimited
	case ExceedsBurst:
		return ErrExceedsBurst
	case InvalidKey, InvalidCost:
		return ErrInvalid
	case Canceled:
		if e.Decision.Expired {
			return context.DeadlineExceeded
		}
		return context.Canceled
	default:
		return ErrUnavailable
	}
}
