package invariant

import (
	"math"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// overflowRounding is what is forgiven to an overflow, in tokens: it counts from 2⁴⁰.
const overflowRounding = 1e-2

// levels checks that no token appears and none disappears. A level is what it was, and what time
// and the caller brought, less what was charged and granted. It never exceeds the room that leases
// leave. No debt takes it below its floor.
func (x *Exchange) levels(f *Finding) {
	c, b := x.Call, x.Before
	spilt, forgiven := math.Inf(1), int64(0)
	for i, limit := range c.Limits() {
		was := b.level(c.Algorithm, i, limit)
		governs := x.governs(i, limit)
		level, lost := x.refilled(&was, governs)
		spilt = min(spilt, lost)
		level += x.settled(f)

		out := x.After.Escrow - x.lent()
		room, lowest := float64(governs.Cap-out), floor(governs.Limit, c.MaxDebt)
		level = max(min(level, room), lowest)
		back := 0.0
		if c.SafeBy(x.Reply.Now + c.TTL) {
			back = x.refund()
		}
		due := x.debt(f, level+back-lowest)
		charged := min(float64(due), math.Floor(level+back-lowest))
		forgiven = max(forgiven, due-int64(charged))
		level = max(min(room, level-charged+back), lowest)
		is, must := x.After.level(c.Algorithm, i, limit).Tokens, level-float64(x.Reply.Grant)
		f.Is(math.Abs(is-must) > Rounding, is-must, "the level is not what time and callers made of it")
	}
	f.Is(x.Reply.Forgiven != forgiven, float64(x.Reply.Forgiven-forgiven), "a reply tells another forgiven debt than there is")
	due := min(b.Overflow+spilt, lua.OverflowEnd)
	beyond := x.After.Overflow - due
	f.Is(math.Abs(beyond) > overflowRounding, beyond, "the overflow is not what the refill lost")
}

// refilled is a level after the time since the last write, and the part of the refill that found no
// room. The room of leases that are over fills from the latest of their ends on.
func (x *Exchange) refilled(was *Level, g governed) (level, lost float64) {
	b := x.Before
	before := float64(was.Terms.Cap - b.Escrow)
	level = min(was.Tokens, before) + x.brings(was, g, b.Last)
	room := before + float64(x.freed)
	if x.freed > 0 {
		room = min(room, before+x.brings(was, g, max(x.end, b.Last)))
	}
	return min(level, room), level - min(level, room)
}

// brings is what came since a time: by the rate of before, and by a lower one from when nobody had
// used that for a hold.
func (x *Exchange) brings(was *Level, g governed, since int64) float64 {
	lower := &Level{Terms: Terms{Tokens: g.Tokens, Period: g.Period}}
	if lower.brings(1) >= was.brings(1) {
		return was.brings(x.now - since)
	}
	until := max(g.rateUntil, since)
	return was.brings(until-since) + lower.brings(x.now-until)
}

// settled is what the caller brings back: a grant whose reply it never accepted, and what it
// returns of its record. It takes what it holds beyond its record.
func (x *Exchange) settled(f *Finding) float64 {
	c, cover, back := x.Call, int64(0), int64(0)
	if x.Owned {
		cover = x.Own.Out
		if c.Ack < x.Own.Seq {
			back, cover = x.Own.Grant, cover-x.Own.Grant
		}
		returned := min(c.Ret, cover)
		back, cover = back+returned, cover-returned
	}
	beyond := max(0, c.Hold-cover)
	f.Is(beyond > 0 && x.Owned && !x.Conceded, float64(beyond), "a process holds more than its record covers")
	return float64(back - beyond)
}

// debt returns what is due of the debt that a call reports, and checks what is charged of it: what
// is owed in any case, and the part of the rest that no overflow paid since the caller last owed
// nothing. A single bucket charges and records what its floor allows.
func (x *Exchange) debt(f *Finding, allowed float64) (due int64) {
	c := x.Call
	seen := c.Seen
	if c.Epoch != x.Before.Born {
		seen = 0
	}
	paid := int64(max(0, x.After.Overflow-float64(seen))) / max(c.Fleet, 1)
	due = max(0, max(c.Owed, c.Debt-paid)-x.charged)
	charge := due
	if c.Algorithm == lua.TokenBucket {
		charge = min(due, int64(allowed))
	}
	f.Is(x.charge != charge, float64(x.charge-charge), "the charge differs from the debt that is owed")
	return due
}

// refund is what the call gives back of what was admitted: a reset all that there is room for.
func (x *Exchange) refund() float64 {
	if x.Call.Reset > 0 {
		return math.Inf(1)
	}
	return float64(x.Call.Refund)
}

// granted checks how much a caller was granted of what there was: that is what is left, and the
// grant.
func (x *Exchange) granted(f *Finding) {
	c, grant := x.Call, x.Reply.Grant
	want, least := c.Want, max(c.Min, 1)
	there := math.Inf(1)
	for i, limit := range c.Limits() {
		there = min(there, x.After.level(c.Algorithm, i, limit).Tokens+float64(grant))
		want = min(want, limit.Cap)
	}
	f.Is(grant > 0 && float64(grant) > there+Rounding, float64(grant)-there, "more was granted than there was")
	f.Is(grant > 0 && grant < least, 0, "less was granted than the least that is of use")
	f.Is(grant == 0 && want > 0 && there >= float64(least)+Rounding, there, "a call was denied what there was")
	others := x.After.wants - x.After.Records[c.Lease].Want
	low, high := Part(there-Rounding, want, least, others), Part(there+Rounding, want, least, others)
	f.Is(grant < low || grant > high, float64(grant-high), "a grant is not the caller's part of what there is")
}

// Part is what a caller is granted who wants so many tokens, and no fewer than least: one and a
// half times its part of a level that others want too.
func Part(level float64, want, least, others int64) int64 {
	there := int64(math.Floor(level))
	if want == 0 || there < least {
		return 0
	}
	return min(max(int64(math.Floor(1.5*float64(there)*float64(want)/float64(others+want))), least), want, there)
}

// governed is what governs one limit of a call, by the rule: the larger burst and the larger rate,
// each by itself, until nobody has used them for lua.TermsHold.
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

// terms checks that the bucket knows what governs and until when, and the largest burst that each
// limit ever had.
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

// expiring reports whether the call has a limit that governs for less than half of a hold if nobody
// writes.
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
