package remote

import (
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// This file is what lua/token_bucket.lua counts, in Go; memory_leases.go has its other steps, and the reasons stand in
// the script. The two must give the same doubles to the last bit, which they do when the same operations run in the
// same order: Lua has nothing but doubles, and here whatever can be fractional is float64 and the rest int64, which
// agree while whole numbers stay below 2⁵³. A Go compiler may fuse x*y + z into one rounding (arm64, s390x; never
// amd64). No product below is an addend: each is divided first. Keep it so, or write float64(x*y) + z, which forbids
// it.

const (
	longestKeep   = 1 << 43 // ms, 279 years: a key without a rate; a time.Duration can hold it
	overflowParts = 1 << 12 // of a token: what a double can hold between OverflowStart and OverflowEnd
	roundingError = 1e-9    // tokens; 0.9999999999 is a rounding error of the refill, not a missing token
)

// memoryBucket is what the hash of one bucket holds.
type memoryBucket struct {
	memoryLeases
	memoryLevel
	overflow float64 // tokens that the refill ever lost because the bucket was full
}

// memoryLevel is how full a bucket is, and the terms by which the time since the last write counts.
type memoryLevel struct {
	tokens float64 // may be negative (debt)
	terms  terms
}

// terms are the numbers that a token bucket refills by until somebody writes who has others.
type terms struct {
	cap, tokens, period int64
	most                int64 // the largest cap ever
}

// by is the terms with the numbers of whoever writes.
func (t terms) by(cap, tokens, period int64) terms {
	return terms{cap, tokens, period, max(cap, t.most)}
}

// refilled reports the tokens that come in elapsed µs.
func (t terms) refilled(elapsed int64) float64 {
	return float64(elapsed) * float64(t.tokens) / float64(t.period)
}

// text joins numbers as Redis stores them, and the largest cap where it is larger.
func (t terms) text(numbers ...int64) string {
	if t.most > t.cap {
		numbers = append(numbers, t.most)
	}
	parts := make([]string, len(numbers))
	for i, n := range numbers {
		parts[i] = decimal(n)
	}
	return strings.Join(parts, "/")
}

// look is the level now, for a call that changes nothing.
func (b *memoryLevel) look(s *memoryStep, l lua.Limit) {
	b.tokens = min(b.tokens+b.terms.refilled(s.now-s.last), float64(min(l.Cap, b.terms.cap)-s.escrow))
}

// fill refills up to cap − escrow by the terms of the last writer, and into the room of ended leases only what came
// after the last such end. It reports what was lost because the bucket was full. A cap that is now lower clamps in
// charge: that is no loss.
func (b *memoryLevel) fill(s *memoryStep) (lost float64) {
	roomThen := float64(b.terms.cap - s.escrowThen)
	refilled := min(b.tokens, roomThen) + b.terms.refilled(s.now-s.last)
	b.tokens = refilled
	if s.escrow < s.escrowThen {
		since := s.now // a broken-off run deleted the records before
		if s.lastEnded > 0 {
			since = s.lastEnded
		}
		b.tokens = min(b.tokens, roomThen+b.terms.refilled(s.now-max(since, s.last)))
	}
	b.tokens = min(b.tokens, float64(b.terms.cap-s.escrow))
	return refilled - b.tokens
}

// charge takes what is due off the level, as far as its floor allows, and reports it; and adds the refund, as far as
// there is room, or fills the room at a reset.
func (b *memoryLevel) charge(s *memoryStep, l lua.Limit, due float64) (charged float64) {
	room, lowest := float64(l.Cap-s.escrow), lowestLevel(l)
	b.tokens = max(min(b.tokens, room), lowest)
	charged = min(due, math.Floor(b.tokens-lowest))
	b.tokens -= charged
	if s.safe && s.resets {
		b.tokens = max(b.tokens, room)
	} else if s.safe {
		b.tokens = max(b.tokens, min(room, b.tokens+float64(s.Refund)))
	}
	return charged
}

// lowestLevel is the floor of a level: below it, what is owed is forgiven.
func lowestLevel(l lua.Limit) float64 {
	perSecond := math.Floor(float64(l.Tokens) * 1e6 / float64(l.Period))
	return -float64(l.Cap) - min(perSecond, float64(lua.MostTokens))
}

// wait reports after how many µs the least that the call takes may be there.
func (b *memoryLevel) wait(s *memoryStep, l lua.Limit) float64 {
	us := math.Ceil((float64(s.least) - b.tokens) * float64(l.Period) / float64(l.Tokens))
	if s.least > l.Cap-s.escrow { // no room before a lease is over
		us = max(us, float64(s.sweep-s.now))
	}
	return us
}

// full reports after how many µs a bucket of so many tokens would be full.
func (b *memoryLevel) full(tokens int64, l lua.Limit) float64 {
	return math.Ceil((float64(tokens) - b.tokens) * float64(l.Period) / float64(l.Tokens))
}

func wholeTokens(level float64) int64 { return int64(math.Floor(level + roundingError)) }

// due is the debt, less what was lost to overflow meanwhile and what was charged before.
func (s *memoryStep) due(overflow float64) float64 {
	seen := s.Seen
	if s.Epoch != s.born {
		seen = 0
	}
	paid := math.Floor(max(0, overflow-float64(seen)) / float64(s.Fleet))
	debt := max(float64(s.Owed), float64(s.Debt)-paid)
	return max(0, debt-float64(s.charged))
}

// limit is the one limit of a bucket.
func (s *memoryStep) limit() lua.Limit {
	return lua.Limit{Cap: s.Cap, Tokens: s.Tokens, Period: s.Period}
}

// run implements memoryState.
func (b *memoryBucket) run(s *memoryStep) (keep int64, written bool) {
	before := *b
	if keep, written = s.lease(&b.memoryLeases, b); !written {
		*b = before
	}
	return keep, written
}

func (b *memoryBucket) load(s *memoryStep) {
	if !s.exists {
		b.tokens, b.overflow = float64(s.Cap), lua.OverflowStart
		b.terms = b.terms.by(s.Cap, s.Tokens, s.Period)
	}
	s.resets = false // the script has no such argument
	s.changed = b.terms.cap != s.Cap || b.terms.tokens != s.Tokens || b.terms.period != s.Period
}

func (b *memoryBucket) refill(s *memoryStep) {
	if s.replays {
		b.look(s, s.limit())
		return
	}
	s.guard()
	b.overflow = min(b.overflow+b.fill(s), lua.OverflowEnd)
}

func (b *memoryBucket) takeBack(_ *memoryStep, n int64) { b.tokens += float64(n) }

func (b *memoryBucket) carry(s *memoryStep, out int64) {
	if s.Hold > out {
		b.tokens -= float64(s.Hold - out)
	}
}

func (b *memoryBucket) charge(s *memoryStep) {
	s.charged += int64(b.memoryLevel.charge(s, s.limit(), s.due(b.overflow)))
}

func (b *memoryBucket) refunds(*memoryStep, int64) bool { return true }

func (b *memoryBucket) level(*memoryStep) (tokens, which int64) { return wholeTokens(b.tokens), 0 }

func (b *memoryBucket) lend(_ *memoryStep, n int64) { b.tokens -= float64(n) }

func (b *memoryBucket) retry(s *memoryStep) (after, which int64) {
	if s.Tokens == 0 {
		return -1, 0
	}
	return int64(min(max(1, b.wait(s, s.limit())), float64(lua.Whole))), 0
}

func (b *memoryBucket) answer(s *memoryStep) { s.reply.Overflow = int64(math.Floor(b.overflow)) }

// store has the key live until its bucket would be full, by the largest cap, and its leases over.
func (b *memoryBucket) store(s *memoryStep) (keep int64) {
	b.terms = b.terms.by(s.Cap, s.Tokens, s.Period)
	if s.Tokens == 0 {
		return longestKeep
	}
	ms := math.Ceil((float64(b.terms.most)-b.tokens)*float64(s.Period)/float64(s.Tokens)/1000) +
		math.Ceil(float64(max(s.now, b.latest)-s.server-s.behind)/1000) + 1000
	return int64(min(ms, longestKeep))
}

// fields implements memoryState.
func (b *memoryBucket) fields() map[string]string {
	f := b.memoryLeases.fields("ctzowage")
	for _, name := range [...]string{"v", "l", "s", "r", "z"} {
		if f[name] = b.value(name); f[name] == "" {
			delete(f, name)
		}
	}
	return f
}

// value is one of the fields, "" for one that is not there.
func (b *memoryBucket) value(field string) string {
	double := func(x float64) string { return strconv.FormatFloat(x, 'g', 17, 64) }
	switch {
	case field == "s" && b.overflow == lua.OverflowStart, field == "z" && b.behind == 0: // they say nothing
		return ""
	case field == "v":
		return lua.TokenBucket.Mark()
	case field == "l":
		return double(b.tokens)
	case field == "s":
		return double((b.overflow - lua.OverflowStart) * overflowParts)
	case field == "r":
		return b.terms.text(b.terms.cap, b.terms.tokens, b.terms.period)
	}
	return b.memoryLeases.value(field)
}

// clone implements memoryState.
func (b *memoryBucket) clone() memoryState {
	twin := *b
	twin.leases = maps.Clone(b.leases)
	return &twin
}
