package model

import (
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// This file is the counter of lua/token_bucket.lua in Go, and what it has in common with that of
// token_buckets.lua. The other steps are in lease.go, and the script states the reasons. Both must
// give the same doubles to the last bit, so both run the same operations in the same order. Lua has
// only doubles. Here a number that can be fractional is a float64 and any other an int64. They
// agree while whole numbers stay below 2⁵³.
//
// A Go compiler may fuse x*y + z into one rounding (on arm64 and s390x; never on amd64). No product
// below is an addend: each is divided first. Keep it so, or write float64(x*y) + z, which prevents
// the fusion.

const (
	// maxKeep, in ms, is how long a key without a rate is kept: 279 years, which a time.Duration
	// can hold.
	maxKeep = 1 << 43

	// overflowParts is the resolution of the overflow in parts of a token: what a double can hold
	// between OverflowStart and OverflowEnd.
	overflowParts = 1 << 12

	// roundingError is in tokens. 0.9999999999 is a rounding error of the refill, not a missing
	// token.
	roundingError = 1e-9

	// lostTime is in µs. So much of a time until a retry is a rounding error, and not time.
	lostTime = 0.001
)

// tokenBucket is the content of one bucket's hash.
type tokenBucket struct {
	lending
	refilling
	tokens float64     // may be negative (debt)
	stored storedLimit // by which it counts
	noted  int64       // when it was recorded until when the stored limit governs; 0 if all callers have the same
}

// refilling counts by the buckets of a step, which refill.
type refilling struct {
	overflow float64 // refill in tokens that was lost because all buckets were full, ever
}

// refillable is a bucket's level in a step, and the limits by which the time since the last write
// counts.
type refillable struct {
	own    lua.Limit   // the call's
	tokens float64     // may be negative (debt)
	stored storedLimit // by which it counts
	turn   int64       // until then
	next   storedLimit // by which the rest of it counts and the step, and what that stores
}

// govern sets what governs from the last write on, by what has governed before, held, and the limit
// of the call.
func (b *refillable) govern(s *step, held storedLimit) {
	b.next, b.turn = held.with(s, b.own), s.now
	if b.next.rate() < held.rate() { // nobody has used the larger one since its hold
		b.turn = max(s.last, held.rateUntil)
	}
}

// refilled returns the tokens that came from a time since the last write until now.
func (b *refillable) refilled(s *step, from int64) float64 {
	turn := max(b.turn, from)
	return b.stored.refilled(turn-from) + b.next.refilled(s.now-turn)
}

// storedLimit is the limit that governs: the largest cap and the largest rate in use. A token
// bucket refills by it until a call changes it, and by a larger rate than that call's no longer
// than it governs.
type storedLimit struct {
	lua.Limit
	maxCap int64 // the largest cap ever

	capUntil, rateUntil int64 // until when each governs, if that is on record
}

// unnoted returns t governing for one hold from its last use on, because nobody has had a smaller
// limit.
func (t storedLimit) unnoted(lastUse int64) storedLimit {
	t.capUntil, t.rateUntil = 0, 0
	return t.usedAt(lastUse)
}

// usedAt returns t governing for one hold from a time on, or for longer.
func (t storedLimit) usedAt(at int64) storedLimit {
	until := at + lua.TermsHold.Microseconds()
	t.capUntil, t.rateUntil = max(t.capUntil, until), max(t.rateUntil, until)
	return t
}

// with returns what governs after a call by l: the larger cap and the larger rate, each by itself,
// as long as they are in use. It notes in the step what else that means.
func (t storedLimit) with(s *step, l lua.Limit) storedLimit {
	next, now, hold := t, s.now, lua.TermsHold.Microseconds()
	used := now + hold
	if s.Lease != "" {
		used += s.TTL
	}
	rate, was := float64(l.Tokens)/float64(l.Period), t.rate()
	lesserCap, lesserRate := l.Cap < t.Cap && now < t.capUntil, rate < was && now < t.rateUntil
	s.expiring = s.expiring || !lesserCap && t.capUntil < now+hold/2 || !lesserRate && t.rateUntil < now+hold/2
	s.lesser = s.lesser || lesserCap || lesserRate
	switch {
	case lesserCap:
	case l.Cap == t.Cap:
		next.capUntil = max(t.capUntil, used)
	default:
		next.Cap, next.capUntil = l.Cap, used
	}
	switch {
	case lesserRate:
	case rate == was:
		next.rateUntil = max(t.rateUntil, used)
	default:
		next.Tokens, next.Period, next.rateUntil = l.Tokens, l.Period, used
	}
	next.maxCap = max(t.maxCap, l.Cap)
	s.changed = s.changed || next.Limit != t.Limit
	return next
}

// rate returns the tokens per µs.
func (t storedLimit) rate() float64 { return float64(t.Tokens) / float64(t.Period) }

// fills returns in how many µs the whole bucket fills.
func (t storedLimit) fills() float64 { return float64(t.Cap) * float64(t.Period) / float64(t.Tokens) }

// refilled returns the tokens that come in elapsed µs.
func (t storedLimit) refilled(elapsed int64) float64 {
	return float64(elapsed) * float64(t.Tokens) / float64(t.Period)
}

// brings returns in how many µs so many tokens come. A rounding error of float64 does not make it
// longer, as far as refilling.level forgives that error.
func (t storedLimit) brings(tokens float64) float64 {
	lost := min(roundingError/2*float64(t.Period)/float64(t.Tokens), lostTime)
	return math.Ceil(tokens*float64(t.Period)/float64(t.Tokens) - lost)
}

// text joins numbers as Redis stores them, and appends the largest cap if it is larger than the
// current one.
func (t storedLimit) text(numbers ...int64) string {
	if t.maxCap > t.Cap {
		numbers = append(numbers, t.maxCap)
	}
	parts := make([]string, len(numbers))
	for i, n := range numbers {
		parts[i] = decimal(n)
	}
	return strings.Join(parts, "/")
}

// look sets the level to that of now, for a call that changes nothing.
func (b *refillable) look(s *step) {
	b.tokens = min(b.tokens+b.refilled(s, s.last), float64(min(b.next.Cap, b.stored.Cap)-s.escrow))
}

// fill refills up to cap − escrow by the limits that governed. Into the room of ended leases goes
// only the refill since the last of them ended. It returns the refill that was lost because the
// bucket was full. If a lower cap governs now, charge reduces the level, and that is no loss.
func (b *refillable) fill(s *step) (lost float64) {
	roomThen := float64(b.stored.Cap - s.escrowThen)
	refilled := min(b.tokens, roomThen) + b.refilled(s, s.last)
	b.tokens = refilled
	if s.escrow < s.escrowThen {
		since := s.now // an interrupted run deleted the records before
		if s.lastEnded > 0 {
			since = s.lastEnded
		}
		b.tokens = min(b.tokens, roomThen+b.refilled(s, max(since, s.last)))
	}
	b.tokens = min(b.tokens, float64(b.stored.Cap-s.escrow))
	return refilled - b.tokens
}

// charge subtracts due tokens from the level, but not below its floor, and returns how many. The
// rest is forgiven. It adds the refund if there is room, or fills the room at a reset. Each makes
// room for the other.
func (b *refillable) charge(s *step, due float64) (charged float64) {
	room, lowest := float64(b.next.Cap-s.escrow), lowestLevel(b.next.Limit, s.MaxDebt)
	b.tokens = max(min(b.tokens, room), lowest)
	given := 0.0
	switch {
	case s.safe && s.resets:
		given = float64(lua.Whole)
	case s.safe:
		given = float64(s.Refund)
	}
	charged = min(due, math.Floor(b.tokens+given-lowest))
	b.tokens = max(min(room, b.tokens-charged+given), lowest)
	s.forgiven = max(s.forgiven, int64(due-charged))
	return charged
}

// lowestLevel returns the floor of a level. Debt below it is forgiven.
func lowestLevel(l lua.Limit, maxDebt int64) float64 {
	perSecond := math.Floor(float64(l.Tokens) * 1e6 / float64(l.Period))
	return -float64(max(l.Cap, maxDebt)) - min(perSecond, float64(lua.MostTokens))
}

// fillsFromLowest returns in how many µs a bucket that is as low as it may go is full, if nobody
// uses it.
func (b *refillable) fillsFromLowest(s *step) float64 {
	l := b.next.Limit
	return float64(l.Cap+max(l.Cap, s.MaxDebt)) * float64(l.Period) / float64(l.Tokens)
}

// wait returns the µs until the call's minimum may be available: by what governs, and by the call's
// own rate from when nobody has used a larger one for its hold.
func (b *refillable) wait(s *step) float64 {
	l, own := b.next, storedLimit{Limit: b.own}
	us := l.brings(float64(s.min) - b.tokens)
	if larger := float64(l.rateUntil - s.now); own.rate() < l.rate() && us > larger {
		if own.Tokens == 0 {
			return float64(lua.Whole)
		}
		us = larger + max(0, own.brings(float64(s.min)-b.tokens-l.refilled(l.rateUntil-s.now)))
	}
	if s.min > l.Cap-s.escrow { // no room before a lease ends
		us = max(us, float64(s.sweep-s.now))
	}
	return us
}

// full returns the µs until a bucket of so many tokens is full.
func (b *refillable) full(tokens int64) float64 {
	return math.Ceil((float64(tokens) - b.tokens) * float64(b.next.Period) / float64(b.next.Tokens))
}

// due returns the call's debt in tokens, less the overflow since and less what was charged before.
func (s *step) due(overflow float64) float64 {
	seen := s.Seen
	if s.Epoch != s.epoch {
		seen = 0
	}
	paid := math.Floor(max(0, overflow-float64(seen)) / float64(s.Fleet))
	debt := max(float64(s.Owed), float64(s.Debt)-paid)
	return max(0, debt-float64(s.charged))
}

func (*refilling) memory(s *step) (longest float64) {
	for i := range s.buckets {
		longest = max(longest, s.buckets[i].fillsFromLowest(s))
	}
	return longest
}

func (r *refilling) refill(s *step) {
	if s.replays {
		for i := range s.buckets {
			s.buckets[i].look(s)
		}
		return
	}
	s.guard()
	lost := float64(lua.OverflowEnd)
	for i := range s.buckets {
		lost = min(lost, s.buckets[i].fill(s))
	}
	r.overflow = min(r.overflow+lost, lua.OverflowEnd)
}

func (*refilling) takeBack(s *step, n int64) {
	for i := range s.buckets {
		s.buckets[i].tokens += float64(n)
	}
}

func (r *refilling) carry(s *step, out int64) {
	if s.Hold > out {
		r.takeBack(s, out-s.Hold)
	}
}

func (*refilling) refunds(*step, int64) bool { return true }

func (*refilling) level(s *step) (tokens, which int64) {
	least, which := s.buckets[0].tokens, int64(1)
	for i, b := range s.buckets {
		if b.tokens < least {
			least, which = b.tokens, int64(i)+1
		}
	}
	return int64(math.Floor(least + roundingError)), which
}

func (r *refilling) lend(s *step, n int64) { r.takeBack(s, -n) }

func (*refilling) retry(s *step) (after, which int64) {
	us, longest, which := 0.0, 0.0, int64(1)
	for i := range s.buckets {
		b := &s.buckets[i]
		longest = max(longest, b.next.fills())
		if wait := b.wait(s); wait > us {
			us, which = wait, int64(i)+1
		}
	}
	return s.soonerThanRefill(us, longest), which
}

// run implements state.
func (b *tokenBucket) run(s *step) (keep int64, written bool) {
	return lease(s, b, &b.lending, b)
}

func (b *tokenBucket) load(s *step) {
	own := lua.Limit{Cap: s.Cap, Tokens: s.Tokens, Period: s.Period}
	if !s.exists {
		b.tokens, b.overflow = float64(s.Cap), lua.OverflowStart
		b.stored = storedLimit{Limit: own, maxCap: s.Cap}
	}
	s.resets = false // the script has no such argument
	held := b.stored
	if b.noted == 0 {
		held = held.unnoted(s.lastUse)
	} else if b.noted < s.last { // a caller with what governs has written since
		held = held.usedAt(s.last)
	}
	s.buckets = append(s.buckets, refillable{own: own, tokens: b.tokens, stored: b.stored})
	s.buckets[0].govern(s, held)
	s.expiring = s.expiring && b.noted > 0 && s.now > s.last
	s.notes = s.lesser || b.noted > 0 && (s.Lease != "" || s.changed) || s.exists && s.changed && s.latest > s.now
}

func (b *tokenBucket) charge(s *step) {
	s.charged += int64(s.buckets[0].charge(s, s.due(b.overflow)))
}

func (b *tokenBucket) level(s *step) (tokens, which int64) {
	tokens, _ = b.refilling.level(s)
	return tokens, 0
}

func (b *tokenBucket) retry(s *step) (after, which int64) {
	if s.buckets[0].next.Tokens == 0 {
		return -1, 0
	}
	after, _ = b.refilling.retry(s)
	return after, 0
}

func (b *tokenBucket) answer(s *step) {
	s.reply.Overflow = int64(math.Floor(b.overflow))
	if s.lesser {
		s.reply.Governs = s.buckets[0].next.Limit
	}
}

// store keeps the key until its bucket would be full by the largest cap and its leases have ended.
func (b *tokenBucket) store(s *step) (keep int64) {
	next := s.buckets[0].next
	if s.notes {
		b.noted = s.now
	} else { // a direct take by what governs says so by its time
		next.capUntil, next.rateUntil = b.stored.capUntil, b.stored.rateUntil
	}
	b.tokens, b.stored = s.buckets[0].tokens, next
	if b.stored.Tokens == 0 {
		return maxKeep
	}
	ms := math.Ceil((float64(b.stored.maxCap)-b.tokens)*float64(b.stored.Period)/float64(b.stored.Tokens)/1000) +
		math.Ceil(float64(max(s.now, b.latest)-s.server-s.behind)/1000) + 1000
	return int64(min(ms, maxKeep))
}

// fields implements state. A field with its default is not stored.
func (b *tokenBucket) fields() map[string]string {
	f := b.lending.fields(lua.TokenBucket)
	f["l"], f["r"] = double(b.tokens), b.stored.text(b.stored.Cap, b.stored.Tokens, b.stored.Period)
	if b.overflow != lua.OverflowStart {
		f["s"] = double((b.overflow - lua.OverflowStart) * overflowParts)
	}
	if b.noted != 0 {
		f["h"] = decimal(b.stored.capUntil) + "/" + decimal(b.stored.rateUntil) + "/" + decimal(b.noted)
	}
	if b.behind == 0 {
		delete(f, "z")
	}
	return f
}

// double returns a number that may have a fraction as the scripts write it: %.17g.
func double(x float64) string { return strconv.FormatFloat(x, 'g', 17, 64) }

// clone implements state.
func (b *tokenBucket) clone() state {
	twin := *b
	twin.leases = maps.Clone(b.leases)
	return &twin
}
