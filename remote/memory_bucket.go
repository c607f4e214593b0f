package remote

import (
	"github.com/tiered-limiter/tiered-limiter/lua"
	"maps"
	"math"
	"strconv"
	"strings"
)

// This file is lua/token_bucket.lua in Go, from its third part on, step by step and in the same order; the reasons stand there. The two must give
// the same doubles to the last bit, which they do when the same operations run in the same order: Lua has nothing but
// doubles, and here whatever can be fractional is float64 and the rest int64, which agree while whole numbers stay below
// 2⁵³. A Go compiler may fuse x*y + z into one rounding (arm64, s390x; never amd64). No product below is an addend: each
// is divided first. Keep it so, or write float64(x*y) + z, which forbids it.

const (
	longestKeep   = 1 << 43 // ms, 279 years: a key without a rate; a time.Duration can hold it
	overflowParts = 1 << 12 // of a token: what a double can hold between OverflowStart and OverflowEnd
	roundingError = 1e-9    // tokens; 0.9999999999 is a rounding error of the refill, not a missing token
)

// memoryBucket is what the hash of one bucket holds; times in µs of the bucket's clock.
type memoryBucket struct {
	level    float64 // tokens, may be negative (debt)
	overflow float64 // tokens that the refill ever lost because the bucket was full
	last     int64   // time of the level
	born     int64   // epoch: when the bucket was created
	behind   int64   // how far the server's clock was set back
	terms    terms   // of the last writer

	lends  bool  // a lease was given once: the hash has the fields below
	escrow int64 // tokens
	wants  int64 // sum of the leases' wants
	active int64 // leases that hold or want tokens
	sweep  int64 // next sweep, 0 none
	latest int64 // end of the latest lease
	leases map[string]lua.Record
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

// run implements memoryState.
func (b *memoryBucket) run(c *lua.Call, server int64, exists bool, r *lua.Reply) (keep int64, written bool) {
	s := memoryStep{Call: *c, server: server, bucket: *b}
	s.run(exists)
	if *r = s.reply; s.written {
		*b = s.bucket
	}
	return s.keep, s.written
}

// fields implements memoryState.
func (b *memoryBucket) fields() map[string]string {
	f := make(map[string]string, 8+len(b.leases))
	for _, name := range strings.Split("vlstczr"+lending, "") {
		if text := b.value(name); text != "" {
			f[name] = text
		}
	}
	for id, l := range b.leases {
		f["p"+id] = l.String()
	}
	return f
}

// lending are the fields that a bucket has once it gave a lease.
const lending = "owage"

// value is one of the fields, "" for one that is not there.
func (b *memoryBucket) value(field string) string {
	double := func(x float64) string { return strconv.FormatFloat(x, 'g', 17, 64) }
	switch {
	case len(field) > 1:
		if l, ok := b.leases[field[1:]]; ok && field[0] == 'p' {
			return l.String()
		}
		return ""
	case field == "s" && b.overflow == lua.OverflowStart, field == "z" && b.behind == 0: // they say nothing
		return ""
	case !b.lends && strings.Contains(lending, field):
		return ""
	}
	switch field {
	case "v":
		return lua.TokenBucket.Mark()
	case "l":
		return double(b.level)
	case "s":
		return double((b.overflow - lua.OverflowStart) * overflowParts)
	case "t":
		return decimal(b.last)
	case "c":
		return decimal(b.born)
	case "z":
		return decimal(b.behind)
	case "r":
		return b.terms.text(b.terms.cap, b.terms.tokens, b.terms.period)
	case "o":
		return decimal(b.escrow)
	case "w":
		return decimal(b.wants)
	case "a":
		return decimal(b.active)
	case "g":
		return decimal(b.sweep)
	case "e":
		return decimal(b.latest)
	}
	return ""
}

// clone implements memoryState.
func (b *memoryBucket) clone() memoryState {
	twin := *b
	twin.leases = maps.Clone(b.leases)
	return &twin
}

// memoryStep is one execution of the script: a call, a copy of its bucket, and what comes of them.
type memoryStep struct {
	lua.Call
	bucket memoryBucket
	server int64 // the server's time

	own        lua.Record // the caller's record, if owned
	owned      bool
	changed    bool  // the caller's terms are not those of the last writer
	now        int64 // the bucket's time: the server's plus behind, never before bucket.last
	unguarded  int64 // the same without the guard
	stepped    bool  // a large step back was believed
	swept      bool
	ended      []string // leases whose time is over; they leave the map when the step is written
	lastEnded  int64    // the latest end among them
	escrowThen int64    // escrow before the sweep
	charged    int64    // debt, by this call and by those whose reply was not accepted
	flags      lua.Flags

	reply   lua.Reply
	written bool  // bucket is to be stored
	keep    int64 // and for so many ms
}

// run executes the step from its third part on: the arguments are checked, and the call is not late. The caller stores bucket
// if written is set.
func (s *memoryStep) run(exists bool) {
	s.Want, s.Min = min(s.Want, s.Cap), max(s.Min, 1)

	// 3. Load, or start full.
	b := &s.bucket
	if !exists {
		*b = memoryBucket{level: float64(s.Cap), overflow: lua.OverflowStart, last: s.server, born: s.server}
		b.terms = b.terms.by(s.Cap, s.Tokens, s.Period)
		s.flags = lua.Created
	}
	s.changed = b.terms.cap != s.Cap || b.terms.tokens != s.Tokens || b.terms.period != s.Period
	if s.Epoch > 0 && s.Epoch != b.born {
		s.flags += lua.OtherEpoch
	}
	s.now = s.server + b.behind

	// 4. Replays and stale calls.
	if s.Lease != "" {
		s.own, s.owned = b.leases[s.Lease]
		if s.owned && s.Seq <= s.own.Seq {
			s.repeat()
			return
		}
	}

	s.guard()
	s.sweepEnded()
	s.refill()
	s.settle()
	s.charge()
	s.grantAndStore(exists)
}

// repeat answers a call that was executed before, or is older than one that was. Nothing is written.
func (s *memoryStep) repeat() {
	b := &s.bucket
	s.now = max(s.now, b.last)
	left := s.own.End - s.now
	level := min(b.level+b.terms.refilled(s.now-b.last), float64(min(s.Cap, b.terms.cap)-b.escrow))
	s.reply = lua.Reply{
		Code: lua.Stale, Level: wholeTokens(level), Active: b.active,
		Now: s.server, Epoch: b.born, Flags: s.flags, Overflow: int64(math.Floor(b.overflow)),
	}
	if s.Seq < s.own.Seq || left <= 0 {
		return
	}
	s.reply.Code, s.reply.Grant, s.reply.TTLLeft = lua.Replay, s.own.Grant, left
	if s.own.Grant == 0 && s.Want > 0 {
		s.reply.Retry = s.retryAfter(level)
	}
	if s.Refund > 0 && !s.SafeBy(s.own.End-b.behind) {
		s.reply.Flags += lua.Unapplied
	}
}

// guard is step 5: a small step back of the clock is waited out, a large one is believed and behind makes up for it.
func (s *memoryStep) guard() {
	b := &s.bucket
	if s.stepped = b.last-s.now > lua.MaxBack.Microseconds(); s.stepped {
		b.behind += b.last - s.now
		s.flags += lua.SteppedBack
	}
	s.unguarded = s.server + b.behind
	s.now = max(s.unguarded, b.last)
}

// sweepEnded is step 6: the tokens of ended leases are burned, their room is free.
func (s *memoryStep) sweepEnded() {
	b := &s.bucket
	s.escrowThen = b.escrow
	if s.swept = b.sweep > 0 && s.now >= b.sweep; !s.swept {
		return
	}
	b.escrow, b.wants, b.active, b.sweep, b.latest = 0, 0, 0, 0, 0
	for id, l := range b.leases { // sums and maxima of whole numbers: any order will do
		if l.End > s.now {
			b.escrow, b.wants, b.latest = b.escrow+l.Out, b.wants+l.Want, max(b.latest, l.End)
			if l.Out+l.Want > 0 {
				b.active++
			}
			continue
		}
		s.ended, s.lastEnded = append(s.ended, id), max(s.lastEnded, l.End)
		if id == s.Lease {
			s.owned = false
		}
	}
	if b.latest > 0 {
		b.sweep = s.now + (s.TTL+1)/2
	}
}

// refill is step 7: up to cap − escrow by the terms of the last writer, and into the room of ended leases only what came after
// the last such end. A cap that is now lower clamps in charge: that is no overflow.
func (s *memoryStep) refill() {
	b := &s.bucket
	roomThen := float64(b.terms.cap - s.escrowThen)
	refilled := min(b.level, roomThen) + b.terms.refilled(s.now-b.last)
	b.level = refilled
	if b.escrow < s.escrowThen {
		since := s.now // a broken-off run deleted the records before
		if s.lastEnded > 0 {
			since = s.lastEnded
		}
		b.level = min(b.level, roomThen+b.terms.refilled(s.now-max(since, b.last)))
	}
	b.level = min(b.level, float64(b.terms.cap-b.escrow))
	b.overflow = min(b.overflow+(refilled-b.level), lua.OverflowEnd)
}

// settle is step 8: a grant whose reply was not accepted is undone, what is given back is credited, what the caller holds
// no more was spent, and what it holds beyond its record is charged. A debt whose reply was not accepted counts as charged.
// From here on escrow counts the hold.
func (s *memoryStep) settle() {
	b := &s.bucket
	var out int64
	if s.owned {
		out = s.own.Out
		b.escrow, b.wants = b.escrow-out, b.wants-s.own.Want
		if out+s.own.Want > 0 {
			b.active--
		}
		if s.Ack < s.own.Seq {
			b.level += float64(s.own.Grant)
			out -= s.own.Grant
			s.charged = s.own.Debt
		}
		ret := min(s.Ret, out)
		b.level += float64(ret)
		out -= ret
	}
	if s.Hold > out {
		b.level -= float64(s.Hold - out)
		s.flags += lua.Adopted
	}
	if !s.owned && s.Ack > 0 || s.owned && s.Ack > s.own.Seq {
		s.flags += lua.Unrecorded
	}
	b.escrow += s.Hold
}

// charge is step 9: the debt, less what was lost to overflow meanwhile and what was charged before, and the refund.
func (s *memoryStep) charge() {
	b := &s.bucket
	room, lowest := float64(s.Cap-b.escrow), s.lowest()
	b.level = max(min(b.level, room), lowest)
	if s.Epoch != b.born {
		s.Seen = 0
	}
	paid := math.Floor(max(0, b.overflow-float64(s.Seen)) / float64(s.Fleet))
	debt := max(float64(s.Owed), float64(s.Debt)-paid)
	charge := min(max(0, debt-float64(s.charged)), math.Floor(b.level-lowest))
	b.level -= charge
	s.charged += int64(charge)
	if s.Deadline > 0 && s.Deadline <= s.server+s.TTL {
		b.level = max(b.level, min(room, b.level+float64(s.Refund)))
	}
	if s.Refund > 0 && !s.SafeBy(s.server+s.TTL) {
		s.flags += lua.Unapplied
	}
}

// lowest is the floor of the level: below it, what is owed is forgiven.
func (s *memoryStep) lowest() float64 {
	perSecond := math.Floor(float64(s.Tokens) * 1e6 / float64(s.Period))
	return -float64(s.Cap) - min(perSecond, float64(lua.MostTokens))
}

// grantAndStore is steps 10 and 11.
func (s *memoryStep) grantAndStore(exists bool) {
	b := &s.bucket
	leased := s.Lease != ""
	avail, wanted := wholeTokens(b.level), b.wants+s.Want
	var grant int64
	if s.Want > 0 && avail >= s.Min {
		grant = part(avail, s.Want, wanted, s.Min)
	}
	b.level -= float64(grant)
	s.reply = lua.Reply{Code: lua.Granted, Grant: grant, Level: wholeTokens(b.level)}
	if s.Want > 0 && grant == 0 {
		s.reply.Code, s.reply.Retry = lua.Denied, s.retryAfter(b.level)
	}

	end := s.now + s.TTL
	if leased {
		s.reply.TTLLeft = s.TTL
		b.latest, b.escrow, b.wants, b.lends = max(b.latest, end), b.escrow+grant, wanted, true
		if s.Hold+grant+s.Want > 0 {
			b.active++
		}
		if b.sweep == 0 {
			b.sweep = end
		}
	}
	peek := !leased && s.Want == 0
	s.written = leased || s.changed || !peek && (grant > 0 || s.swept || s.stepped)
	s.reply.Active, s.reply.Now, s.reply.Epoch = b.active, s.server, b.born
	s.reply.Flags, s.reply.Overflow = s.flags, int64(math.Floor(b.overflow))
	if !s.written {
		if !exists {
			s.reply.Epoch = 0
		}
		return
	}
	for _, id := range s.ended {
		delete(b.leases, id)
	}
	if leased {
		if b.leases == nil {
			b.leases = make(map[string]lua.Record)
		}
		b.leases[s.Lease] = lua.Record{Seq: s.Seq, Grant: grant, Out: s.Hold + grant, Want: s.Want, End: end, Debt: s.charged}
	}
	b.last = s.now
	b.terms = b.terms.by(s.Cap, s.Tokens, s.Period)
	s.keep = s.keepFor()
}

// keepFor reports how long the key must live, in ms: until its bucket would be full, by the largest cap, and its leases over.
func (s *memoryStep) keepFor() int64 {
	if s.Tokens == 0 {
		return longestKeep
	}
	b := &s.bucket
	ms := math.Ceil((float64(b.terms.most)-b.level)*float64(s.Period)/float64(s.Tokens)/1000) +
		math.Ceil(float64(max(s.now, b.latest)-s.unguarded)/1000) + 1000
	return int64(min(ms, longestKeep))
}

// retryAfter reports after how many µs min tokens may be there, -1 never.
func (s *memoryStep) retryAfter(level float64) int64 {
	if s.Tokens == 0 {
		return -1
	}
	b := &s.bucket
	us := max(1, math.Ceil((float64(s.Min)-level)*float64(s.Period)/float64(s.Tokens)))
	if s.Min > s.Cap-b.escrow { // no room before a lease is over
		us = max(us, float64(b.sweep-s.now))
	}
	return int64(min(us, float64(lua.Whole)))
}

func wholeTokens(level float64) int64 { return int64(math.Floor(level + roundingError)) }
