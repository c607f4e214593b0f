package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Names of fields as net/http stores them. On the wire their case does not matter.
const (
	fieldLimit     = "X-Ratelimit-Limit"
	fieldRemaining = "X-Ratelimit-Remaining"
	fieldReset     = "X-Ratelimit-Reset"
	fieldRetry     = "Retry-After"
)

// retryUnavailable is the Retry-After while Redis does not answer: it is tried again every half to one second.
const retryUnavailable = time.Second

// headers writes the fields for a Decision that a limit made.
func (l *limit) headers(h http.Header, uses []use, d *tiered.Decision) {
	retry := int64(0)
	if !d.Allowed {
		if after, ok := retryAfter(d); ok {
			retry = seconds(saturated(after, time.Duration(l.Random()*float64(l.Jitter))))
			h[fieldRetry] = []string{strconv.FormatInt(retry, 10)}
		}
	}
	if !counted(d) || d.Limit == math.MaxInt64 || shadowed(uses, d) {
		return
	}
	if !l.NoXRateLimit {
		reset := d.ResetAfter
		if l.ResetUnix {
			reset = saturated(time.Duration(time.Now().UnixNano()), reset)
		}
		writeX(h, d.Limit, d.Remaining, reset)
	}
	if l.IETFDraft11 {
		writeDraft11(h, uses, d, retry)
	}
}

// shadowed reports whether the policy of d is in shadow mode. Clients need not keep to a limit that is only being
// tried.
func shadowed(uses []use, d *tiered.Decision) bool {
	for i := range uses {
		if p := uses[i].limiter.Policy(); p.Shadow && p.Name == d.Policy {
			return true
		}
	}
	return false
}

// counted reports whether a Decision knows what is left of a limit.
func counted(d *tiered.Decision) bool {
	switch d.Reason {
	case tiered.Unknown, tiered.Unavailable, tiered.InvalidKey, tiered.Canceled, tiered.Shadowed:
		return false
	}
	return d.Limit > 0 // otherwise the key is blocked
}

// retryAfter returns when a retry makes sense. It reports false if it never does, or if nobody will retry.
func retryAfter(d *tiered.Decision) (time.Duration, bool) {
	switch d.Reason {
	case tiered.ExceedsBurst, tiered.InvalidKey, tiered.Canceled:
		return 0, false
	case tiered.Limited:
		return d.RetryAfter, true
	case tiered.ShareSpent: // RetryAfter is 0 if the share never admits the cost: then Redis has to come back first
		return max(d.RetryAfter, time.Nanosecond), true
	}
	return retryUnavailable, true
}

// writeX writes the three X-RateLimit fields. Their values share one string and one array: two allocations.
func writeX(h http.Header, limit, remaining int64, reset time.Duration) {
	var room [64]byte
	b := strconv.AppendInt(room[:0], max(limit, 0), 10)
	first := len(b)
	b = strconv.AppendInt(b, max(remaining, 0), 10)
	second := len(b)
	b = strconv.AppendInt(b, ceil(max(reset, 0)), 10)
	s := string(b)
	v := &[3]string{s[:first], s[first:second], s[second:]}
	h[fieldLimit], h[fieldRemaining], h[fieldReset] = v[0:1:1], v[1:2:2], v[2:3:3]
}

// seconds returns d in whole seconds, rounded up and at least 1. This form of Retry-After needs no clock.
func seconds(d time.Duration) int64 { return max(ceil(d), 1) }

func ceil(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// saturated returns a+b, or the longest duration if the sum overflows. Both are ≥ 0.
func saturated(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
