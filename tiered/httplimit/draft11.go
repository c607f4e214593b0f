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
//	RateLimit-Policy: "user";q=200;w=2, "ip";q=1000;w=60, "ip#2";q=9000;w=3600
//	RateLimit: "user";r=57;t=1
//
// with an item for each limit of each policy that applied, as far as it is known, and one for the limit that decided. A middleware
// further out may have written the fields before: a List may be on several lines.
//
// q is the burst, w the seconds that it takes to be refilled: of a window, its tokens and its length. r is what is left, and t the
// seconds that it takes to be refilled, at the rate that a window comes to: whoever spends r in t never exceeds the limit. (When a
// window ends is X-RateLimit-Reset.) After a refusal t is Retry-After, and r what is left but no more than is refilled in t.
func writeDraft11(h http.Header, uses []use, d *tiered.Decision, retry int64) {
	var room [128]byte
	b := room[:0]
	item := func(name string, l tiered.Limit) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = appendItem(b, name, "q", burst(l), "w", paceOf(l).refill(burst(l)))
	}
	var decided *use
	for i := range uses {
		p := uses[i].limiter.Policy()
		if p.Name == d.Policy {
			decided = &uses[i]
		}
		switch {
		case p.Shadow:
		case p.PerKey != nil: // of other keys than the one that decided it is not known
			if l, ok := uses[i].limiter.LimitOf(*d); ok && p.Name == d.Policy {
				item(p.Name, l)
			}
		case p.Limit != tiered.Unlimited && p.Limit != tiered.Blocked:
			item(p.Name, p.Limit)
			for i, also := range p.Also {
				item(limitName(p.Name, i+2), also)
			}
		}
	}
	if len(b) > 0 {
		h[fieldPolicy11] = append(h[fieldPolicy11], string(b))
	}
	if decided == nil {
		return
	}
	pace := pace(0)
	if l, ok := decided.limiter.LimitOf(*d); ok {
		pace = paceOf(l)
	}
	r, t := max(d.Remaining, 0), retry
	if retry > 0 {
		r = min(r, pace.in(retry))
	} else {
		t = pace.refill(max(r, 1))
	}
	h[fieldLimit11] = append(h[fieldLimit11], string(appendItem(b[:0], limitName(d.Policy, int(d.Which)), "r", r, "t", t)))
}

// limitName is how clients are told of one of a policy's limits, from 1: the policy's name, and of those behind the first its
// number behind a sign that no policy's name has.
func limitName(policy string, which int) string {
	if which < 2 {
		return policy
	}
	return policy + "#" + strconv.Itoa(which)
}

// burst is the most that a limit admits at once.
func burst(l tiered.Limit) int64 {
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// pace is how many nanoseconds a token takes to be refilled; 0 if that is not known.
type pace float64

func paceOf(l tiered.Limit) pace { return pace(float64(l.Per) / float64(l.Tokens)) }

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

// appendItem appends "name";a=n;b=m, without b where m is 0. The name of a limit has only letters that a String of structured
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
