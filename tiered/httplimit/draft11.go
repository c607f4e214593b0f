package httplimit

import (
	"math"
	"net/http"
	"strconv"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The fields of draft-ietf-httpapi-ratelimit-headers-11, each a List of structured fields (RFC 9651). All that is known of
// that revision is in this file: the draft is expected to rename its parameters.
const (
	fieldPolicy11 = "Ratelimit-Policy"
	fieldLimit11  = "Ratelimit"
)

// writeDraft11 adds
//
//	RateLimit-Policy: "user";q=200;w=2, "ip";q=1000;w=60
//	RateLimit: "user";r=57;t=1
//
// with an item for each policy that applied and whose limit is known, and one for the limit that decided. A middleware
// further out may have written the fields before: a List may be on several lines.
//
// q is the burst, w the seconds that it takes to be refilled. r is what is left, and t the seconds that it takes to be
// refilled: whoever spends r in t never exceeds the rate. After a refusal t is Retry-After, and r what is left but no more
// than is refilled in t.
func writeDraft11(h http.Header, uses []use, d *tiered.Decision, retry int64) {
	var room [128]byte
	b := room[:0]
	for _, u := range uses {
		q, pace, ok := u.terms(d)
		if !ok {
			continue
		}
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = appendItem(b, u.limiter.Policy().Name, "q", q, "w", pace.refill(q))
	}
	if len(b) > 0 {
		h[fieldPolicy11] = append(h[fieldPolicy11], string(b))
	}
	for _, u := range uses {
		if u.limiter.Policy().Name != d.Policy {
			continue
		}
		_, pace, _ := u.terms(d)
		r, t := max(d.Remaining, 0), retry
		if retry > 0 {
			r = min(r, pace.in(retry))
		} else {
			t = pace.refill(max(r, 1))
		}
		h[fieldLimit11] = append(h[fieldLimit11], string(appendItem(b[:0], d.Policy, "r", r, "t", t)))
		return
	}
}

// pace is how many nanoseconds a token takes to be refilled; 0 if that is not known.
type pace float64

// terms are the burst and the pace of the limit that u is counted by. With PerKey they are known of the key that decided,
// from what it lacks; of others, and of policies that are only tried out or without a limit, nothing is told.
func (u use) terms(d *tiered.Decision) (burst int64, _ pace, ok bool) {
	p := u.limiter.Policy()
	switch {
	case p.Shadow, p.Limit == tiered.Unlimited, p.Limit == tiered.Blocked:
		return 0, 0, false
	case p.PerKey == nil && p.Limit.Burst == 0:
		return p.Limit.Tokens, pace(float64(p.Limit.Per) / float64(p.Limit.Tokens)), true
	case p.PerKey == nil:
		return p.Limit.Burst, pace(float64(p.Limit.Per) / float64(p.Limit.Tokens)), true
	case p.Name != d.Policy:
		return 0, 0, false
	case d.Remaining < d.Limit:
		return d.Limit, pace(float64(d.ResetAfter) / float64(d.Limit-d.Remaining)), true
	}
	return d.Limit, 0, true
}

// refill is how many seconds n tokens take to be refilled, rounded up, and 1 at least; 0 if that is not known.
func (p pace) refill(n int64) int64 {
	if p == 0 {
		return 0
	}
	const rounding = 1 - 1e-12 // a quotient a hair above a whole number is that number
	return int64(min(max(math.Ceil(float64(n)*float64(p)/1e9*rounding), 1), longestInteger))
}

// in is how many tokens are refilled in so many seconds.
func (p pace) in(seconds int64) int64 {
	if p == 0 {
		return 0
	}
	return int64(min(float64(seconds)*1e9/float64(p), longestInteger))
}

// longestInteger is the largest Integer of a structured field: RFC 9651 §3.3.1.
const longestInteger = 999_999_999_999_999

// appendItem appends "name";a=n;b=m, without b where m is 0. A policy's name has only letters that a String of structured
// fields may have.
func appendItem(b []byte, name, first string, n int64, second string, m int64) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `";`...)
	b = append(b, first...)
	b = append(b, '=')
	b = strconv.AppendInt(b, min(max(n, 0), longestInteger), 10)
	if m <= 0 {
		return b
	}
	b = append(b, ';')
	b = append(b, second...)
	b = append(b, '=')
	return strconv.AppendInt(b, min(m, longestInteger), 10)
}
