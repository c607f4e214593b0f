package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Names of fields as net/http keeps them. On the wire their case makes no difference.
const (
	fieldLimit     = "X-Ratelimit-Limit"
	fieldRemaining = "X-Ratelimit-Remaining"
	fieldReset     = "X-Ratelimit-Reset"
	fieldRetry     = "Retry-After"
)

// retryUnavailable is when to come back where nobody knows: Redis is tried again every half to one second.
const retryUnavailable = time.Second

// headers tells of a Decision that was made by a limit, whichever way.
func (l *limit) headers(h http.Header, uses []use, d *tiered.Decision) {
	retry := int64(0)
	if !d.Allowed {
		if after, ok := retryAfter(d); ok {
			retry = seconds(saturated(after, time.Duration(l.Random()*float64(l.Jitter))))
			h[fieldRetry] = []string{strconv.FormatInt(retry, 10)}
		}
	}
	if !counted(d) || d.Limit == math.MaxInt64 || tried(uses, d) {
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

// tried reports whether the policy of d is only tried out: clients are not to keep to what may never come into force.
func tried(uses []use, d *tiered.Decision) bool {
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
	return d.Limit > 0 // else it is blocked
}

// retryAfter reports when it makes sense to come back, and false where it never does or nobody will.
func retryAfter(d *tiered.Decision) (time.Duration, bool) {
	switch d.Reason {
	case tiered.ExceedsBurst, tiered.InvalidKey, tiered.Canceled:
		return 0, false
	case tiered.Limited:
		return d.RetryAfter, true
	case tiered.ShareSpent: // 0 where the share alone never admits it: then Redis has to come back first
		return max(d.RetryAfter, time.Nanosecond), true
	}
	return retryUnavailable, true
}

// writeX writes the three fields. Their values share one string and one array: two allocations.
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

// seconds is d in whole seconds, rounded up, and 1 at least: the form of Retry-After that needs no clock.
func seconds(d time.Duration) int64 { return max(ceil(d), 1) }

func ceil(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// saturated is a+b, both ≥ 0, and at most the longest duration there is.
func saturated(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
