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
// with an item for each policy that applied, and one for the limit that decided. A middleware further out may have written
// the fields before: a List may be on several lines.
//
// q is the burst, w the seconds that it takes to be refilled. r is what is left, and t the seconds that it takes to be
// refilled: whoever spends r in t never exceeds the rate. After a refusal t is Retry-After, and r what is left but no more
// than is refilled in t.
func writeDraft11(h http.Header, uses []use, d *tiered.Decision, retry int64) {
	var room [128]byte
	b := room[:0]
	for i, u := range uses {
		p := u.limiter.Policy()
		if i > 0 {
			b = append(b, ", "...)
		}
		q := p.Limit.Burst
		if q == 0 {
			q = p.Limit.Tokens
		}
		b = appendItem(b, p.Name, "q", q, "w", refill(p.Limit, q))
	}
	h[fieldPolicy11] = append(h[fieldPolicy11], string(b))
	for _, u := range uses {
		p := u.limiter.Policy()
		if p.Name != d.Policy {
			continue
		}
		r, t := max(d.Remaining, 0), retry
		if retry > 0 {
			r = min(r, int64(float64(p.Limit.Tokens)*(float64(retry)*1e9/float64(p.Limit.Per))))
		} else {
			t = refill(p.Limit, max(r, 1))
		}
		h[fieldLimit11] = append(h[fieldLimit11], string(appendItem(b[:0], p.Name, "r", r, "t", t)))
		return
	}
}

// refill is how many seconds n tokens take to be refilled, rounded up, and 1 at least.
func refill(l tiered.Limit, n int64) int64 {
	return int64(max(1, math.Ceil(float64(n)*float64(l.Per)/(float64(l.Tokens)*1e9))))
}

// longestInteger is the largest Integer of a structured field: RFC 9651 §3.3.1.
const longestInteger = 999_999_999_999_999

// appendItem appends "name";a=n;b=m. A policy's name has only letters that a String of structured fields may have.
func appendItem(b []byte, name, first string, n int64, second string, m int64) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `";`...)
	b = append(b, first...)
	b = append(b, '=')
	b = strconv.AppendInt(b, min(max(n, 0), longestInteger), 10)
	b = append(b, ';')
	b = append(b, second...)
	b = append(b, '=')
	return strconv.AppendInt(b, min(max(m, 0), longestInteger), 10)
}
