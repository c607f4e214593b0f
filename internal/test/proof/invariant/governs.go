package invariant

import "github.com/tiered-limiter/tiered-limiter/lua"

// governed is what governs one limit of a call, by the rule: the larger burst and the larger rate, each by itself, until
// nobody has used them for lua.TermsHold.
type governed struct {
	lua.Limit
	lesserCap, lesserRate bool  // the caller's is smaller
	capUntil, rateUntil   int64 // until when the terms before govern
	used                  int64 // until when those govern that the caller has
}

// governs says what governs the i-th limit of the call.
func (x *Exchange) governs(i int, l lua.Limit) governed {
	b, hold := x.Before, lua.TermsHold.Microseconds()
	was := b.level(x.Call.Algorithm, i, l)
	g := governed{Limit: l, capUntil: was.CapUntil, rateUntil: was.RateUntil, used: x.now + hold}
	if was.CapUntil == 0 {
		g.capUntil = max(b.Last, b.End) + hold
		g.rateUntil = g.capUntil
	} else if x.Call.Algorithm == lua.TokenBucket && b.Noted < b.Last {
		g.capUntil, g.rateUntil = max(g.capUntil, b.Last+hold), max(g.rateUntil, b.Last+hold)
	}
	if x.Call.Lease != "" {
		g.used += x.Call.TTL
	}
	rate, stored := float64(l.Tokens)/float64(l.Period), float64(was.Terms.Tokens)/float64(was.Terms.Period)
	if g.lesserCap = l.Cap < was.Terms.Cap && x.now < g.capUntil; g.lesserCap {
		g.Cap = was.Terms.Cap
	}
	g.lesserRate = rate < stored && x.now < g.rateUntil
	if g.lesserRate || rate == stored {
		g.Tokens, g.Period = was.Terms.Tokens, was.Terms.Period
	}
	return g
}

// terms checks that the bucket knows what governs and until when, and the largest burst that each limit ever had.
func (x *Exchange) terms(f *Finding) {
	c := x.Call
	for i, l := range c.Limits() {
		g, before, is := x.governs(i, l), x.Before.level(c.Algorithm, i, l), x.After.level(c.Algorithm, i, l)
		due := Terms{Cap: g.Cap, Tokens: g.Tokens, Period: g.Period, Most: max(l.Cap, before.Terms.Most)}
		f.Is(is.Terms != due, 0, "a bucket does not know the limit that governs it")
		noted := is.CapUntil > 0 && (c.Algorithm != lua.TokenBucket || x.After.Noted == x.After.Last)
		lesser := g.lesserCap || g.lesserRate
		f.Is(!noted && (lesser || x.changed() && x.Before.Exists && x.Before.End > x.now), 0, "nothing says until when the larger limit governs")
		if !noted || c.Algorithm == lua.TokenBucket && c.Lease == "" && !lesser && !x.changed() {
			continue // a direct take from a single bucket says by its time that it uses what governs
		}
		f.Is(g.lesserCap && is.CapUntil > g.capUntil || g.lesserRate && is.RateUntil > g.rateUntil, 0,
			"a smaller limit prolongs a larger one")
		f.Is(!g.lesserCap && is.CapUntil < g.used || !g.lesserRate && is.RateUntil < g.used, 0,
			"a limit that is in use is not held")
	}
	f.Is(x.After.Born != x.Before.Born, 0, "a bucket is not the one that it was")
}

// changed reports whether another limit governs than before.
func (x *Exchange) changed() bool {
	for i, l := range x.Call.Limits() {
		was := x.Before.level(x.Call.Algorithm, i, l)
		if x.governs(i, l).Limit != (lua.Limit{Cap: was.Terms.Cap, Tokens: was.Terms.Tokens, Period: was.Terms.Period, Span: l.Span}) {
			return true
		}
	}
	return false
}

// expiring reports whether the call has a limit that governs for less than half of a hold if nobody writes.
func (x *Exchange) expiring() bool {
	for i, l := range x.Call.Limits() {
		g, soon := x.governs(i, l), x.now+lua.TermsHold.Microseconds()/2
		if was := x.Before.level(x.Call.Algorithm, i, l); was.CapUntil > 0 && x.now > x.Before.Last &&
			(!g.lesserCap && g.capUntil < soon || !g.lesserRate && g.rateUntil < soon) {
			return true
		}
	}
	return false
}
