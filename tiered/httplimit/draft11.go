package httplimit

import (
	"cmp"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rules"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The fields of draft-ietf-httpapi-ratelimit-headers-11. Each is a List of structured fields (RFC
// 9651). This file is the only one that depends on that revision, because the draft is expected to
// rename its parameters.
const (
	fieldPolicy11 = "Ratelimit-Policy"
	fieldLimit11  = "Ratelimit"
)

// writeDraft11 adds
//
//	RateLimit-Policy: "user";q=200;w=2, "ip";q=1000;w=60, "ip#2";q=9000;w=3600
//	RateLimit: "user";r=57;t=1
//
// with an item for each known limit of each policy that applied and is told, and one for the limit
// that decided. An outer middleware may have written the fields before: a List may span several
// lines.
//
// q is the burst, and w the seconds in which it is refilled. For a window they are its tokens and
// its length. r is what is left, and t the seconds in which r is refilled, at the mean rate for a
// window. A client that spends r in t never exceeds the limit. (X-RateLimit-Reset says when a
// window ends.) After a refusal t is Retry-After, and r is what is left, but not more than is
// refilled in t. For a window of the calendar w is the length of the present one, and t is when it
// ends.
func writeDraft11(h http.Header, uses []rules.Use, d *tiered.Decision, retry int64) {
	var room [128]byte
	b := room[:0]
	item := func(name string, l tiered.Limit) {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = appendItem(b, name, "q", burst(l), "w", windowOf(l))
	}
	var decided *rules.Use
	for i := range uses {
		p := uses[i].Policy()
		if p.Name == d.Policy {
			decided = &uses[i]
		}
		switch {
		case !uses[i].Tells():
		case p.PerKey != nil || uses[i].Carries(p): // the limit is known only for the key that decided
			if l, ok := uses[i].Limiter.LimitOf(*d); ok && p.Name == d.Policy {
				item(rules.LimitName(p.Name, int(d.LimitNumber)), l)
			}
		case p.Limit == tiered.Unlimited() || p.Limit == tiered.Blocked():
		case p.Limit.Also == (tiered.Further{}): // without a list, which would be an allocation
			item(p.Name, p.Limit)
		default:
			for i, l := range p.Limit.Each() {
				item(rules.LimitName(p.Name, i+1), l)
			}
		}
	}
	if len(b) > 0 {
		h[fieldPolicy11] = append(h[fieldPolicy11], string(b))
	}
	if decided == nil {
		return
	}
	l, known := decided.Limiter.LimitOf(*d)
	r, t := max(d.Remaining, 0), retry
	switch pace := paceOf(l); {
	case known && !l.Calendar.IsZero(): // all comes back when it ends
		t = cmp.Or(retry, ceil(d.ResetAfter))
	case retry > 0:
		r = min(r, pace.in(retry))
	default:
		t = pace.refill(max(r, 1))
	}
	h[fieldLimit11] = append(h[fieldLimit11], string(appendItem(b[:0], rules.LimitName(d.Policy, int(d.LimitNumber)), "r", r, "t",
		t)))
}

// burst returns the most tokens that a limit admits at once.
func burst(l tiered.Limit) int64 {
	if l.Burst == 0 {
		return l.Tokens
	}
	return l.Burst
}

// pace is the time in ns in which one token is refilled; 0 if unknown, and for the calendar.
type pace float64

func paceOf(l tiered.Limit) pace { return pace(float64(l.Per) / float64(max(l.Tokens, 1))) }

// windowOf returns the seconds in which a limit is refilled, or those of the present window of the
// calendar.
func windowOf(l tiered.Limit) int64 {
	if l.Calendar.IsZero() {
		return paceOf(l).refill(burst(l))
	}
	from, to := l.Calendar.At(time.Now())
	return int64(to.Sub(from) / time.Second)
}

// refill returns the seconds in which n tokens are refilled, rounded up and at least 1; 0 if
// unknown.
func (p pace) refill(n int64) int64 {
	if p == 0 {
		return 0
	}
	const rounding = 1 - 1e-12 // a quotient slightly above a whole number is that number
	return int64(min(max(math.Ceil(float64(n)*float64(p)/1e9*rounding), 1), maxInteger))
}

// in returns how many tokens are refilled in so many seconds.
func (p pace) in(seconds int64) int64 {
	if p == 0 {
		return 0
	}
	return int64(min(float64(seconds)*1e9/float64(p), maxInteger))
}

// maxInteger is the largest Integer of a structured field (RFC 9651 §3.3.1).
const maxInteger = 999_999_999_999_999

// appendItem appends "name";a=n;b=m, without b if m is 0. The name of a limit contains only
// characters that a String of structured fields may contain.
func appendItem(b []byte, name, first string, n int64, second string, m int64) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, `";`...)
	b = append(b, first...)
	b = append(b, '=')
	b = strconv.AppendInt(b, min(max(n, 0), maxInteger), 10)
	if m <= 0 {
		return b
	}
	b = append(b, ';')
	b = append(b, second...)
	b = append(b, '=')
	return strconv.AppendInt(b, min(m, maxInteger), 10)
}
