package model

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// This file holds the steps that all scripts with leases share, in their order. The algorithms
// differ in their counter: what they count, and when.

// lending is what a key with leases stores beside its count. Times are in µs of the key's clock.
type lending struct {
	epoch  int64 // when the key was created
	last   int64 // newest time
	behind int64 // how far the server's clock was set back: the key's time is the server's plus this

	hasLent bool  // a lease was granted once, so the fields below are stored
	escrow  int64 // tokens that the leases hold
	wants   int64 // sum of the leases' wants
	active  int64 // leases that hold or want tokens
	sweep   int64 // time of the next sweep, 0 for none
	latest  int64 // end of the latest lease
	leases  map[string]lua.Record
}

// counter counts the tokens of a key. The step has the call and the leases.
type counter interface {
	// load brings the count to the step's time, except for what depends on the caller.
	load(s *step)

	// memory returns the µs after its end for which the record of a lease that charged a debt is
	// kept: for as long as the debt may count. Its holder may not have heard that it was charged,
	// and report it again.
	memory(s *step) float64

	// refill completes that, after the sweep and once it is known whether the step is a replay.
	refill(s *step)

	// takeBack returns n tokens of the caller's lease: they were not spent and will not be.
	takeBack(s *step, n int64)

	// carry keeps the call's Hold out. The lease had out tokens left. If Hold is fewer, the
	// difference was spent. If it is more, the difference was never lent, or its record is lost,
	// and it is counted now.
	carry(s *step, out int64)

	// charge counts the debt. It counts the refund and the reset if they are safe.
	charge(s *step)

	// refunds reports whether the key accepts the call's refund at an instant.
	refunds(s *step, instant int64) bool

	// level returns the tokens that are available, and the number of the limit with the fewest.
	level(s *step) (tokens, which int64)

	// lend counts a grant.
	lend(s *step, n int64)

	// retry returns the µs until the call's minimum may be available, or -1 for never, and the
	// limit that takes longest.
	retry(s *step) (after, which int64)

	// answer completes the reply.
	answer(s *step)

	// store completes what is stored. It returns for how many ms the key lives.
	store(s *step) (keep int64)
}

// step is one execution of a script. Keys reuse a single one, so that a call does not allocate it.
type step struct {
	*lua.Call
	server int64 // the server's time
	exists bool  // whether the key exists
	reply  *lua.Reply

	*lending              // of the key
	buckets  []refillable // of the call's limits, if they refill

	want, min  int64 // tokens, reduced to what the limits allow
	borrows    bool  // what is granted becomes a lease
	resets     bool  // the call is a reset too
	lastUse    int64 // until when the key was used at most: its newest time, or the end of its latest lease
	now        int64 // the key's time; it never runs back, except in a fixed window
	leaseEnd   int64 // when a lease granted now ends
	maxPromise int64 // a replay promises no lease time beyond it

	own     lua.Record // the caller's record, if owned
	owned   bool
	replays bool // the call was executed before, or is older than one that was
	safe    bool // the record outlives every copy of the call, so a refund or a reset counts only once

	keepsEnded bool     // records of ended leases are kept, because their tokens may come back
	memory     float64  // the counter's, once swept and unless keepsEnded
	forgets    bool     // the call is a reset that counts, and forgets what ended leases of others held; it sweeps
	ended      []string // leases that ended, if swept
	lastEnded  int64    // the latest end among them
	escrowThen int64    // escrow before the sweep

	charged  int64 // debt charged by this call and by those whose reply was not accepted
	forgiven int64 // debt that this call did not charge, by the limit that forgives the most
	news     bool  // the caller has spent some of what was out, or owes something
	flags    lua.Flags
	lesser   bool // a larger limit than the caller's governs
	notes    bool // until when what governs does is recorded

	// Each of these makes the step write.
	changed  bool // other limits govern than before
	swept    bool // except for a peek
	stepped  bool // a large step back of the clock was believed; except for a peek
	expiring bool // what the caller goes by was about to be forgotten, or is new; except for a peek
}

// lease executes a step on a key's state: its leases, and their counter. If nothing is written, the
// state is as before.
func lease[T any](s *step, state *T, k *lending, c counter) (keep int64, written bool) {
	before := *state
	if keep, written = s.lease(k, c); !written {
		*state = before
	}
	return keep, written
}

// lease executes the step. The arguments are checked, and the call is not late.
func (s *step) lease(k *lending, c counter) (keep int64, written bool) {
	s.lending = k
	if !s.exists {
		s.epoch, s.last, s.flags = s.server, s.server, lua.Created
	}
	if s.Epoch > 0 && s.Epoch != s.epoch {
		s.flags += lua.OtherEpoch
	}
	s.want, s.min, s.borrows = min(s.Want, s.LeastCap()), max(s.Min, 1), s.Lease != "" && s.To == 0
	s.resets, s.lastUse = s.Reset > 0, max(s.last, s.latest)
	s.now = max(s.server+s.behind, s.last)
	s.leaseEnd, s.maxPromise = s.now+s.TTL, lua.Whole
	c.load(s)
	if s.lesser {
		s.flags += lua.OtherTerms
	}
	if s.Lease != "" {
		s.own, s.owned = s.leases[s.Lease]
	}
	if s.replays = s.owned && s.Seq <= s.own.Seq && !s.Dry(); s.replays {
		s.repeat(c)
		return 0, false
	}
	s.safe = s.SafeBy(s.server + s.TTL)
	s.sweepEnded(c)
	c.refill(s)
	s.settle(c)
	c.charge(s)
	s.flagUnapplied(c, s.now)
	return s.grantAndStore(c)
}

// repeat answers a call that was executed before, or is older than one that was. Nothing is
// written.
func (s *step) repeat(c counter) {
	c.refill(s)
	left := min(s.own.End, s.maxPromise) - s.now
	if s.Seq < s.own.Seq || left <= 0 {
		s.answer(c, lua.Reply{Code: lua.Stale})
		return
	}
	r := lua.Reply{Code: lua.Replay, Grant: s.own.Grant, TTLLeft: left}
	if s.own.Grant == 0 && s.want > 0 {
		r.Retry, _ = c.retry(s)
	}
	s.safe = s.SafeBy(s.own.End - s.behind)
	s.flagUnapplied(c, s.own.End-1)
	s.answer(c, r)
}

// flagUnapplied sets Unapplied if the call's refund or reset does not count at an instant.
func (s *step) flagUnapplied(c counter, instant int64) {
	if s.resets && !s.safe || s.Refund > 0 && !(s.safe && c.refunds(s, instant)) {
		s.flags += lua.Unapplied
	}
}

// guard waits out a small step back of the clock, and believes a large one by adding it to behind.
// The key's time is the same either way.
func (s *step) guard() {
	if s.behind, s.stepped = guard(s.last, s.server, s.behind); s.stepped {
		s.flags += lua.SteppedBack
	}
}

// sweepEnded removes ended leases from the sums. Their records stay until the step is written.
func (s *step) sweepEnded(c counter) {
	s.escrowThen = s.escrow
	if s.swept = s.sweep > 0 && s.now >= s.sweep || s.forgets; !s.swept {
		return
	}
	if !s.keepsEnded {
		s.memory = c.memory(s)
	}
	var latest int64
	s.escrow, s.wants, s.active, s.sweep = 0, 0, 0, 0
	for id, l := range s.leases { // sums and maxima of whole numbers: any order will do
		if l.End > s.now {
			latest = max(latest, l.End)
		} else {
			if s.ended = append(s.ended, id); l.Out > 0 {
				s.lastEnded = max(s.lastEnded, l.End)
			}
			if !s.remembers(l) {
				continue
			}
			l = s.endedRecord(id, l)
		}
		s.escrow, s.wants = s.escrow+l.Out, s.wants+l.Want
		if l.Out+l.Want > 0 {
			s.active++
		}
	}
	if latest > 0 {
		s.sweep = s.now + (s.TTL+1)/2
	}
	if s.owned && s.own.End <= s.now {
		s.own, s.owned = s.endedRecord(s.Lease, s.own), s.remembers(s.own)
	}
	if !s.keepsEnded {
		s.latest = latest
	}
}

// remembers reports whether the record of an ended lease is kept.
func (s *step) remembers(l lua.Record) bool {
	return s.keepsEnded || l.Debt > 0 && float64(l.End)+s.memory > float64(s.now)
}

// settle undoes a grant whose reply was not accepted, and takes back what the caller returns.
// Tokens that the caller no longer holds were spent. Tokens that it holds beyond its record are
// counted. A debt whose reply was not accepted counts as charged. From here on escrow includes the
// hold.
func (s *step) settle(c counter) {
	var out int64
	if s.owned {
		s.escrow, s.wants = s.escrow-s.own.Out, s.wants-s.own.Want
		if s.own.Out+s.own.Want > 0 {
			s.active--
		}
		out = s.own.Out
		if s.Ack < s.own.Seq {
			c.takeBack(s, s.own.Grant)
			out -= s.own.Grant
			s.charged = s.own.Debt
		}
		ret := min(s.Ret, out)
		c.takeBack(s, ret)
		out -= ret
	}
	s.news = s.Hold < out || s.Debt > s.charged
	if s.Hold > out {
		s.flags += lua.Adopted
	}
	if !s.owned && s.Ack > 0 || s.owned && s.Ack > s.own.Seq {
		s.flags += lua.Unrecorded
	}
	c.carry(s, out)
	s.escrow += s.Hold
}

// grantAndStore decides the grant, and stores and answers the step. A refused direct take stores
// nothing unless it saw something that must be kept. A peek stores only new limits.
func (s *step) grantAndStore(c counter) (keep int64, written bool) {
	r := lua.Reply{Code: lua.Granted}
	avail, _ := c.level(s)
	if s.want > 0 && avail >= s.min {
		r.Grant = grantSize(avail, s.want, s.wants+s.want, s.min)
		if !s.Dry() {
			c.lend(s, r.Grant)
		}
		left, _ := c.level(s)
		if s.borrows && r.Grant < s.want && left < 1 && s.Algorithm != lua.TokenBucket { // there the rate says it
			s.min = 1
			r.Retry, _ = c.retry(s)
		}
	} else if s.want > 0 {
		r.Code = lua.Denied
		r.Retry, r.Which = c.retry(s)
	}
	leased := s.Lease != ""
	peek := !leased && s.want == 0
	written = !s.Dry() && (leased || s.changed || !peek && (r.Grant > 0 || s.swept || s.stepped || s.expiring))
	if written {
		s.dropEnded()
		if leased {
			r.TTLLeft = s.leaseEnd - s.now
			s.record(r.Grant)
		}
		s.last = s.now
		keep = c.store(s)
	}
	if s.Dry() && (s.changed || s.news) {
		s.flags += lua.News
	}
	s.answer(c, r)
	if !written && !s.exists {
		s.reply.Epoch = 0
	}
	return keep, written
}

// sooner returns the µs until a refused caller may find tokens: after, or less if others hold
// tokens. A holder that lives calls a quarter of its lease's life before the lease ends at the
// latest, and gives back what it does not use.
func (s *step) sooner(after int64) int64 {
	after = max(1, after)
	if s.escrow <= s.Hold || s.latest <= s.now {
		return after
	}
	for id, l := range s.leases {
		if id == s.Lease || l.Out == 0 || l.End <= s.now {
			continue
		}
		left, quarter := l.End-s.server-s.behind, s.TTL/4
		after = min(after, max(left-quarter, min(left, quarter)))
	}
	return max(1, after)
}

// soonerThanRefill is sooner for buckets that refill after us, if that takes longer than a lease
// lives, and more than a minute to be full.
func (s *step) soonerThanRefill(us, full float64) int64 {
	after := int64(min(max(1, us), float64(lua.Whole)))
	if after > s.TTL && full > float64(time.Minute.Microseconds()) {
		after = s.sooner(after)
	}
	return after
}

// grantSize returns the grant out of avail tokens, where avail ≥ least: all that the caller wants,
// or one and a half times its part of what all leases want.
func grantSize(avail, want, wanted, least int64) int64 {
	return min(max(int64(math.Floor(1.5*float64(avail)*float64(want)/float64(wanted))), least), want, avail)
}

// endedRecord is the record that is kept of an ended lease. It has no part in what is granted, and
// its tokens do not come back unless records are kept for them.
func (s *step) endedRecord(id string, l lua.Record) lua.Record {
	if l.Want = 0; !s.keepsEnded || s.forgets && id != s.Lease {
		l.Grant, l.Out = 0, 0
	}
	return l
}

// dropEnded removes the records of ended leases, or changes those that are kept.
func (s *step) dropEnded() {
	for _, id := range s.ended {
		if l := s.leases[id]; s.remembers(l) {
			s.leases[id] = s.endedRecord(id, l)
		} else {
			delete(s.leases, id)
		}
	}
}

// record stores the caller's lease.
func (s *step) record(grant int64) {
	want := s.want
	if grant == 0 && s.Algorithm == lua.TokenBucket { // a refused want may be over: see lease.lua
		want = min(want, 1)
	}
	if !s.borrows {
		grant, want = 0, 0
	}
	s.hasLent, s.latest = true, max(s.latest, s.leaseEnd)
	s.escrow, s.wants = s.escrow+grant, s.wants+want
	if s.Hold+grant+want > 0 {
		s.active++
	}
	if s.sweep == 0 {
		s.sweep = s.leaseEnd
	}
	if s.leases == nil {
		s.leases = make(map[string]lua.Record)
	}
	s.leases[s.Lease] = lua.Record{
		Seq: s.Seq, Grant: grant, Out: s.Hold + grant, Want: want, End: s.leaseEnd, Debt: s.charged,
	}
}

// answer completes the reply. It keeps the limit that refused, if one did.
func (s *step) answer(c counter, r lua.Reply) {
	level, which := c.level(s)
	if r.Level = min(level, s.LeastCap()); r.Which == 0 {
		r.Which = which
	}
	r.Active, r.Now, r.Epoch, r.Flags, r.Forgiven = s.active, s.server, s.epoch, s.flags, s.forgiven
	*s.reply = r
	c.answer(s)
}

// fields returns what is stored of the leases, and of the counter its mark.
func (k *lending) fields(counter lua.Algorithm) map[string]string {
	f := map[string]string{"v": counter.Mark(), "c": decimal(k.epoch), "t": decimal(k.last), "z": decimal(k.behind)}
	if k.hasLent {
		f["o"], f["w"], f["a"] = decimal(k.escrow), decimal(k.wants), decimal(k.active)
		f["g"], f["e"] = decimal(k.sweep), decimal(k.latest)
	}
	for id, l := range k.leases {
		f["p"+id] = l.String()
	}
	return f
}
