package remote

import (
	"github.com/tiered-limiter/tiered-limiter/lua"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// memoryBuckets is lua/token_buckets.lua in Go. No product below is an addend: see memory_bucket.go.
type memoryBuckets struct {
	born   int64 // epoch
	last   int64 // newest time
	behind int64 // how far the server's clock was set back
	until  int64 // from then on the buckets are full and no lease is out

	overflow float64 // refill that all buckets lost at once

	lends  bool
	escrow int64 // tokens
	wants  int64 // sum of the leases' wants
	active int64 // leases that hold or want tokens
	sweep  int64 // next sweep, 0 none
	latest int64 // end of the latest lease
	leases map[string]lua.Record

	levels map[int64]float64 // by period
	terms  []terms           // of each, by its last writer
}

// bucketsStep is one execution of the script on a copy of the state.
type bucketsStep struct {
	*lua.Call
	memoryBuckets
	limits []lua.Limit
	level  []float64
	was    []terms // by which the time since the last write counts

	unknown bool // a limit is new on the key

	least  int64
	server int64
	now    int64
	flags  lua.Flags
}

// run implements memoryState.
func (k *memoryBuckets) run(c *lua.Call, server int64, exists bool, r *lua.Reply) (keep int64, written bool) {
	s := bucketsStep{Call: c, memoryBuckets: *k, server: server, least: max(c.Min, 1)}
	if !exists {
		s.memoryBuckets = memoryBuckets{born: server, last: server, overflow: lua.OverflowStart}
		s.flags = lua.Created
	}
	if c.Epoch > 0 && c.Epoch != s.born {
		s.flags += lua.OtherEpoch
	}
	s.limits = c.Limits()
	changed := false
	for _, l := range s.limits {
		level, known := s.levels[l.Period]
		was := terms{}.by(l.Cap, l.Tokens, l.Period)
		if !known {
			level, s.unknown = float64(l.Cap-s.escrow), true
		} else {
			was = s.terms[s.termsOf(l)]
		}
		changed = changed || was.cap != l.Cap || was.tokens != l.Tokens
		s.level, s.was = append(s.level, level), append(s.was, was)
	}
	s.now = server + s.behind
	want, leased := min(c.Want, c.LeastCap()), c.Lease != ""

	own, owned := s.leases[c.Lease]
	owned = owned && leased
	if owned && c.Seq <= own.Seq {
		s.now = max(s.now, s.last)
		left := own.End - s.now
		for i, l := range s.limits {
			s.level[i] = min(s.level[i]+s.was[i].refilled(s.now-s.last), float64(min(l.Cap, s.was[i].cap)-s.escrow))
		}
		if c.Seq < own.Seq || left <= 0 {
			*r = s.reply(lua.Stale, 0, 0, 0)
			return 0, false
		}
		after := int64(0)
		if own.Grant == 0 && want > 0 {
			after, _ = s.retry()
		}
		if s.Refund+s.Reset > 0 && !s.SafeBy(own.End-s.behind) {
			s.flags += lua.Unapplied
		}
		*r = s.reply(lua.Replay, own.Grant, after, left)
		return 0, false
	}

	stepped := s.last-s.now > lua.MaxBack.Microseconds()
	if stepped {
		s.behind += s.last - s.now
		s.flags += lua.SteppedBack
	}
	s.now = max(server+s.behind, s.last)
	s.leases = maps.Clone(s.leases)
	swept := s.sweep > 0 && s.now >= s.sweep
	lives := s.refill(swept, own)
	charged := s.settle(own, owned && lives)

	code, grant, after := lua.Granted, int64(0), int64(0)
	avail, which := s.tight()
	wanted := s.wants + want
	if want > 0 && avail >= s.least {
		grant = part(avail, want, wanted, s.least)
		s.credit(-grant)
		_, which = s.tight()
	} else if want > 0 {
		code = lua.Denied
		after, which = s.retry()
	}

	left := int64(0)
	peek := !leased && c.Want == 0
	written = leased || changed || !peek && (grant > 0 || swept || stepped)
	if written && leased {
		left = c.TTL
		s.latest, s.escrow, s.wants, s.lends = max(s.latest, s.now+c.TTL), s.escrow+grant, wanted, true
		if c.Hold+grant+want > 0 {
			s.active++
		}
		if s.sweep == 0 {
			s.sweep = s.now + c.TTL
		}
		if s.leases == nil {
			s.leases = make(map[string]lua.Record)
		}
		s.leases[c.Lease] = lua.Record{Seq: c.Seq, Grant: grant, Out: c.Hold + grant, Want: want, End: s.now + c.TTL, Debt: charged}
	}
	*r = s.reply(code, grant, after, left)
	r.Which = which
	if !written {
		if !exists {
			r.Epoch = 0
		}
		return 0, false
	}
	s.last, s.until = s.now, max(s.until, s.latest)
	if s.levels = maps.Clone(s.levels); s.levels == nil {
		s.levels = make(map[int64]float64)
	}
	if changed || s.unknown {
		s.terms = s.newTerms()
	}
	for i, l := range s.limits {
		now := s.was[i].by(l.Cap, l.Tokens, l.Period)
		s.levels[l.Period] = s.level[i]
		full := float64(s.now) + math.Ceil((float64(now.most)-s.level[i])*float64(l.Period)/float64(l.Tokens))
		s.until = max(s.until, int64(min(full, float64(lua.Whole-1))))
	}
	*k = s.memoryBuckets
	ms := math.Ceil(float64(max(s.until, s.now)-server-s.behind)/1000) + 1000
	return int64(min(ms, longestKeep)), true
}

// termsOf is where the terms of a limit are, -1 for nowhere.
func (k *memoryBuckets) termsOf(l lua.Limit) int {
	return slices.IndexFunc(k.terms, func(t terms) bool { return t.period == l.Period })
}

// newTerms are those that the call leaves: its own, and then those of limits that it does not have.
func (s *bucketsStep) newTerms() (all []terms) {
	for i, l := range s.limits {
		all = append(all, s.was[i].by(l.Cap, l.Tokens, l.Period))
	}
	for _, t := range s.terms {
		if !slices.ContainsFunc(s.limits, func(l lua.Limit) bool { return l.Period == t.period }) {
			all = append(all, t)
		}
	}
	return all
}

// tight reports what the tightest bucket has, and its number.
func (s *bucketsStep) tight() (tokens, which int64) {
	least, which := s.level[0], int64(1)
	for i, l := range s.level {
		if l < least {
			least, which = l, int64(i)+1
		}
	}
	return wholeTokens(least), which
}

func (s *bucketsStep) reply(code lua.Code, grant, retry, left int64) lua.Reply {
	tight, which := s.tight()
	full := 0.0
	for i, l := range s.limits {
		full = max(full, math.Ceil((float64(l.Cap)-s.level[i])*float64(l.Period)/float64(l.Tokens)))
	}
	return lua.Reply{
		Code: code, Grant: grant, Level: tight, Retry: retry, Active: s.active, TTLLeft: left, Now: s.server, Epoch: s.born,
		Flags: s.flags, Overflow: int64(s.overflow), Which: which, Reset: int64(min(full, float64(lua.Whole-1))), Stamp: s.now,
	}
}

// retry reports when the bucket that needs longest may have the tokens.
func (s *bucketsStep) retry() (after, which int64) {
	us, by := 0.0, int64(1)
	for i, l := range s.limits {
		wait := math.Ceil((float64(s.least) - s.level[i]) * float64(l.Period) / float64(l.Tokens))
		if s.least > l.Cap-s.escrow {
			wait = max(wait, float64(s.sweep-s.now))
		}
		if wait > us {
			us, by = wait, int64(i)+1
		}
	}
	return int64(min(max(1, us), float64(lua.Whole))), by
}

// refill sweeps if it is time to, and refills. It reports whether the caller's record lives.
func (s *bucketsStep) refill(swept bool, own lua.Record) (lives bool) {
	escrowThen, lastEnded := s.escrow, int64(0)
	lives = true
	if swept {
		s.escrow, s.wants, s.active, s.sweep, s.latest = 0, 0, 0, 0, 0
		for id, l := range s.leases {
			if l.End <= s.now {
				delete(s.leases, id)
				lastEnded = max(lastEnded, l.End)
				continue
			}
			s.escrow, s.wants, s.latest = s.escrow+l.Out, s.wants+l.Want, max(s.latest, l.End)
			if l.Out+l.Want > 0 {
				s.active++
			}
		}
		if s.latest > 0 {
			s.sweep = s.now + (s.TTL+1)/2
		}
		lives = own.End > s.now
	}
	lost := float64(lua.OverflowEnd)
	for i, was := range s.was {
		roomThen := float64(was.cap - escrowThen)
		full := min(s.level[i], roomThen) + was.refilled(s.now-s.last)
		level := full
		if s.escrow < escrowThen {
			since := s.now
			if lastEnded > 0 {
				since = lastEnded
			}
			level = min(level, roomThen+was.refilled(s.now-max(since, s.last)))
		}
		s.level[i] = min(level, float64(was.cap-s.escrow)) // a cap that is now lower clamps in settle: that is no overflow
		lost = min(lost, full-s.level[i])
	}
	s.overflow = min(s.overflow+lost, lua.OverflowEnd)
	return lives
}

func (s *bucketsStep) credit(n int64) {
	for i := range s.level {
		s.level[i] += float64(n)
	}
}

// settle settles the caller's record, its debt, refund and reset.
func (s *bucketsStep) settle(own lua.Record, owned bool) (charged int64) {
	out := int64(0)
	if owned {
		s.escrow, s.wants = s.escrow-own.Out, s.wants-own.Want
		if own.Out+own.Want > 0 {
			s.active--
		}
		if out = own.Out; s.Ack < own.Seq {
			s.credit(own.Grant)
			out -= own.Grant
			charged = own.Debt
		}
		ret := min(s.Ret, out)
		s.credit(ret)
		out -= ret
	}
	if s.Hold > out {
		s.credit(out - s.Hold)
		s.flags += lua.Adopted
	}
	if !owned && s.Ack > 0 || owned && s.Ack > own.Seq {
		s.flags += lua.Unrecorded
	}
	s.escrow += s.Hold
	once := s.Deadline > 0 && s.Deadline <= s.server+s.TTL
	if s.Refund+s.Reset > 0 && !once {
		s.flags += lua.Unapplied
	}
	seen := s.Seen
	if s.Epoch != s.born {
		seen = 0
	}
	lost := math.Floor(max(0, s.overflow-float64(seen)) / float64(s.Fleet))
	charge := max(0, max(s.Owed, s.Debt-int64(lost))-charged)
	for i, l := range s.limits {
		room := float64(l.Cap - s.escrow)
		lowest := -float64(l.Cap) - min(math.Floor(float64(l.Tokens)*1e6/float64(l.Period)), float64(lua.MostTokens))
		level := max(min(s.level[i], room), lowest)
		level -= min(float64(charge), math.Floor(level-lowest))
		if once && s.Reset > 0 {
			level = max(level, room)
		} else if once {
			level = max(level, min(room, level+float64(s.Refund)))
		}
		s.level[i] = level
	}
	return charged + charge
}

// fields implements memoryState.
func (k *memoryBuckets) fields() map[string]string {
	f := map[string]string{
		"v": "tm1", "c": decimal(k.born), "t": decimal(k.last), "z": decimal(k.behind), "x": decimal(k.until),
		"s": strconv.FormatFloat(k.overflow, 'g', 17, 64),
	}
	if k.lends {
		f["o"], f["w"], f["a"] = decimal(k.escrow), decimal(k.wants), decimal(k.active)
		f["g"], f["e"] = decimal(k.sweep), decimal(k.latest)
	}
	for id, l := range k.leases {
		f["p"+id] = l.String()
	}
	for period, level := range k.levels {
		f["l"+decimal(period)] = strconv.FormatFloat(level, 'g', 17, 64) // %.17g
	}
	all := make([]string, len(k.terms))
	for i, t := range k.terms {
		all[i] = decimal(t.period) + ":" + t.text(t.cap, t.tokens)
	}
	f["r"] = strings.Join(all, ",")
	return f
}

// clone implements memoryState.
func (k *memoryBuckets) clone() memoryState {
	twin := *k
	twin.leases, twin.levels = maps.Clone(k.leases), maps.Clone(k.levels)
	return &twin
}
