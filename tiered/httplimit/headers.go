package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const fieldRetry = "Retry-After"

// Headers selects the three fields that tell a client about the limit. The zero Headers is the
// default: X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset.
type Headers struct {
	// Prefix of the names of the fields: "" means "X-RateLimit". "RateLimit" makes RateLimit-Limit,
	// -Remaining and -Reset.
	Prefix string

	// Omit leaves the three fields out. Retry-After stays.
	Omit bool

	// ResetUnix makes -Reset the Unix time in seconds at which the limit is full again. By default
	// it is the number of seconds until then.
	ResetUnix bool
}

// fieldNames are the names of the three fields as net/http stores them. On the wire their case does
// not matter.
type fieldNames struct{ limit, remaining, reset string }

func (s Headers) names() fieldNames {
	if s.Prefix == "" || s.Prefix == defaultPrefix {
		return fieldNames{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}
	}
	name := func(last string) string { return http.CanonicalHeaderKey(s.Prefix + last) }
	return fieldNames{name("-Limit"), name("-Remaining"), name("-Reset")}
}

const defaultPrefix = "X-RateLimit"

// WriteHeaders sets X-RateLimit-Limit, -Remaining and -Reset, and Retry-After if d is a refusal and
// a later retry may be admitted. It is for handlers that ask a Limiter themselves. What is unknown
// is not written: while Redis does not answer and the policy is FailClosed, only Retry-After. To a
// nil Header nothing is written.
func WriteHeaders(h http.Header, d tiered.Decision) { Headers{}.Write(h, d) }

// Write is [WriteHeaders] with the fields that s selects.
func (s Headers) Write(h http.Header, d tiered.Decision) {
	if h == nil {
		return
	}
	if after, ok := retryAfter(&d); ok && !d.Allowed {
		h[fieldRetry] = []string{strconv.FormatInt(seconds(after), 10)}
	}
	if rules.Counted(&d) {
		s.write(h, s.names(), &d, false)
	}
}

// write sets the three fields. Their values share one string and one array: two allocations.
//
// atSecond says that the limit is full again at a whole second. Then the nearest one is it:
// ResetAfter is later by what the answer of Redis and the decision took.
func (s Headers) write(h http.Header, names fieldNames, d *tiered.Decision, atSecond bool) {
	if s.Omit {
		return
	}
	reset := d.ResetAfter
	if s.ResetUnix {
		reset = rules.Saturated(time.Duration(time.Now().UnixNano()), reset)
		if atSecond {
			reset = reset.Round(time.Second)
		}
	}
	var room [64]byte
	b := strconv.AppendInt(room[:0], max(d.Burst, 0), 10)
	first := len(b)
	b = strconv.AppendInt(b, max(d.Remaining, 0), 10)
	second := len(b)
	b = strconv.AppendInt(b, ceil(max(reset, 0)), 10)
	text := string(b)
	v := &[3]string{text[:first], text[first:second], text[second:]}
	h[names.limit], h[names.remaining], h[names.reset] = v[0:1:1], v[1:2:2], v[2:3:3]
}

// retryUnavailable is the Retry-After while Redis does not answer: it is tried again every half to
// one second.
const retryUnavailable = time.Second

// headers writes the fields for a Decision that a limit made. each has those of the uses, if that
// is needed.
func (l *limit) headers(h http.Header, uses []rules.Use, d *tiered.Decision, each []tiered.Decision) {
	retry := int64(0)
	if !d.Allowed {
		if after, ok := retryAfter(d); ok {
			retry = seconds(rules.Saturated(after, time.Duration(l.Random()*float64(l.Jitter))))
			h[fieldRetry] = []string{strconv.FormatInt(retry, 10)}
		}
	}
	told := rules.Told(uses, d, each)
	if told == nil {
		return
	}
	if told != d { // what refused is hidden
		retry = 0
	}
	l.Headers.write(h, l.names, told, l.Headers.ResetUnix && endsAtSecond(uses, told))
	if l.IETFDraft11 {
		writeDraft11(h, uses, told, retry)
	}
}

// endsAtSecond reports whether the policy of d has calendar windows of whole seconds.
func endsAtSecond(uses []rules.Use, d *tiered.Decision) bool {
	for i := range uses {
		if p := uses[i].Policy(); p.Name == d.Policy {
			return !p.Limit.Calendar.IsZero() || p.Calendar && p.Limit.Per%time.Second == 0
		}
	}
	return false
}

// retryAfter returns when a retry makes sense. It reports false if it never does, or if nobody will
// retry.
func retryAfter(d *tiered.Decision) (time.Duration, bool) {
	switch d.Reason {
	case tiered.ExceedsBurst, tiered.InvalidKey, tiered.Canceled:
		return 0, false
	case tiered.Limited:
		return d.RetryAfter, true
	case tiered.FallbackSpent: // RetryAfter is 0 if the fallback never admits the cost: then Redis has to come back first
		return max(d.RetryAfter, time.Nanosecond), true
	}
	return retryUnavailable, true
}

// seconds returns d in whole seconds, rounded up and at least 1. This form of Retry-After needs no
// clock.
func seconds(d time.Duration) int64 { return max(ceil(d), 1) }

func ceil(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
