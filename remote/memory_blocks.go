package remote

import (
	"github.com/tiered-limiter/tiered-limiter/lua"
	"maps"
	"math"
	"slices"
	"strings"
)

// memoryBlocks is lua/sliding_window.lua in Go.
type memoryBlocks struct {
	born   int64 // epoch
	last   int64 // newest time
	behind int64 // how far the server's clock was set back
	until  int64 // until then something counts

	lends  bool
	wants  int64 // sum of the leases' wants
	active int64 // leases that hold or want tokens
	sweep  int64 // next sweep, 0 none
	latest int64 // end of the latest lease
	leases map[string]lua.Record

	use    []memoryVersion
	counts map[memoryTag]memoryCount // per limit of all of them
}

// memoryVersion is one version of a policy, whose limits count.
type memoryVersion struct {
	tags  []memoryTag
	until int64 // when its last grant counts no more; 0 where it is the only one
}

// long is its longest window.
func (v memoryVersion) long() (long int64) {
	for _, t := range v.tags {
		long = max(long, t.period*t.span)
	}
	return long
}

// memoryTag tells the limits of a key apart.
type memoryTag struct{ period, span int64 }

func (t memoryTag) String() string { return decimal(t.period) + "x" + decimal(t.span) }

// memoryCount is what one limit counted.
type memoryCount struct {
	total  int64
	first  int64 // block
	blocks map[int64]int64
}

const mostVersions = 4

// blocksStep is one execution of the script on a copy of the state.
type blocksStep struct {
	*lua.Call
	memoryBlocks
	limits []lua.Limit   // of this version, which decide
	tags   []memoryTag   // of these, and behind them of other versions
	counts []memoryCount // of the tags
	mine   memoryVersion
	others []memoryVersion
	server int64
	now    int64
	stop   int64
	flags  lua.Flags
}

// run implements memoryState.
func (k *memoryBlocks) run(c *lua.Call, server int64, exists bool, r *lua.Reply) (keep int64, written bool) {
	s := blocksStep{Call: c, memoryBlocks: *k, server: server}
	if !exists {
		s.memoryBlocks = memoryBlocks{born: server, last: server}
		s.flags = lua.Created
	}
	if c.Epoch > 0 && c.Epoch != s.born {
		s.flags += lua.OtherEpoch
	}
	var stepped bool
	if s.behind, stepped = guard(s.last, server, s.behind); stepped {
		s.flags += lua.SteppedBack
	}
	s.now = max(server+s.behind, s.last)
	s.stop = s.now + c.TTL
	want, least, leased := min(c.Want, c.LeastCap()), max(c.Min, 1), c.Lease != ""
	lends := leased && c.To == 0
	s.versions()
	s.trim()
	s.begin(exists)

	own, owned := s.leases[c.Lease]
	owned = owned && leased
	if owned && c.Seq <= own.Seq {
		left := own.End - s.now
		if c.Seq < own.Seq || left <= 0 {
			*r = s.reply(lua.Stale, 0, 0, 0)
			return 0, false
		}
		after := int64(0)
		if own.Grant == 0 && want > 0 {
			after = 1
		}
		once := c.SafeBy(own.End - s.behind)
		if c.Reset > 0 && !once || c.Refund > 0 && !(once && c.Epoch == s.born) {
			s.flags += lua.Unapplied
		}
		*r = s.reply(lua.Replay, own.Grant, after, left)
		return 0, false
	}

	s.leases = maps.Clone(s.leases)
	swept := s.sweep > 0 && s.now >= s.sweep
	if swept {
		owned = s.sweepEnded(own) && owned
	}
	charged := s.settle(own, owned)
	once := c.Deadline > 0 && c.Deadline <= server+c.TTL
	if c.Reset > 0 && once {
		s.clearAll()
	}
	if c.Refund > 0 && once && exists && c.Epoch == s.born {
		s.count(min(c.At, s.now), -c.Refund)
	}
	if c.Reset > 0 && !once || c.Refund > 0 && !(once && exists && c.Epoch == s.born) {
		s.flags += lua.Unapplied
	}
	if c.Debt > charged {
		for i := range s.tags {
			n := c.Debt - charged
			if i < len(s.limits) {
				n = min(n, max(0, s.limits[i].Cap-s.counts[i].total))
			}
			s.change(i, min(c.Since+s.behind, s.now), n)
		}
		charged = c.Debt
	}

	code, grant, after := lua.Granted, int64(0), int64(0)
	tight, which := s.level()
	wanted := s.wants + want
	if want > 0 && tight >= least {
		grant = part(tight, want, wanted, least)
		at := s.now
		if lends {
			at = s.stop
		}
		s.count(at, grant)
		_, which = s.level()
	} else if want > 0 {
		code = lua.Denied
		after, which = s.retry(least, which)
	}

	left := int64(0)
	peek := !leased && c.Want == 0
	fades := len(s.others) > 0 && s.mine.until > 0 && 2*(s.mine.until-s.now) < s.mine.long()
	written = leased || !peek && (grant > 0 || swept || stepped || fades)
	if written && leased {
		lent, wish := int64(0), int64(0)
		if lends {
			lent, wish = grant, want
		}
		left = c.TTL
		s.latest, s.wants, s.lends = max(s.latest, s.stop), s.wants+wish, true
		if c.Hold+lent+wish > 0 {
			s.active++
		}
		if s.sweep == 0 {
			s.sweep = s.stop
		}
		if s.leases == nil {
			s.leases = make(map[string]lua.Record)
		}
		s.leases[c.Lease] = lua.Record{Seq: c.Seq, Grant: lent, Out: c.Hold + lent, Want: wish, End: s.stop, Debt: charged}
	}
	*r = s.reply(code, grant, after, left)
	r.Which = which
	if !written {
		if !exists {
			r.Epoch = 0
		}
		return 0, false
	}
	s.last = s.now
	s.use = []memoryVersion{s.mine}
	if s.use[0].until = max(s.mine.until, s.now+s.mine.long()); leased {
		s.use[0].until = max(s.mine.until, s.stop+s.mine.long())
	}
	if s.use = append(s.use, s.others...); len(s.others) == 0 {
		s.use[0].until = 0
	}
	s.memoryBlocks.counts = make(map[memoryTag]memoryCount)
	for i, tag := range s.tags {
		s.memoryBlocks.counts[tag] = s.counts[i]
		s.until = max(s.until, s.end(tag))
	}
	*k = s.memoryBlocks
	return min(int64(math.Ceil(float64(s.until-server-s.behind)/1000))+1000, longestKeep), true
}

// blockOf is the number of the block that has an instant.
func blockOf(instant, period int64) int64 {
	return int64(math.Floor(float64(instant) / float64(period)))
}

// end is when a limit counts nothing any more, or later.
func (s *blocksStep) end(tag memoryTag) int64 {
	return (blockOf(max(s.now, s.latest), tag.period) + tag.span) * tag.period
}

// versions finds out which other versions of the policy are in use, and puts their limits behind the call's own.
func (s *blocksStep) versions() {
	s.limits = s.Limits()
	for _, l := range s.limits {
		s.mine.tags = append(s.mine.tags, memoryTag{l.Period, l.Span})
	}
	for _, v := range s.use {
		if v.until == 0 {
			v.until = max(s.last, s.latest) + v.long()
		}
		switch {
		case slices.Equal(v.tags, s.mine.tags):
			if len(s.use) > 1 {
				s.mine.until = v.until
			}
		case v.until > s.now:
			s.others = append(s.others, v)
		}
	}
	for len(s.others) >= mostVersions {
		short := 0
		for i, v := range s.others {
			if v.long() < s.others[short].long() {
				short = i
			}
		}
		gone := s.others[short]
		s.others = slices.Delete(s.others, short, short+1)
		for i := range s.others { // for as long as it may come back
			s.others[i].until = max(s.others[i].until, gone.until)
		}
	}
	s.tags = slices.Clone(s.mine.tags)
	for _, v := range s.others {
		for _, tag := range v.tags {
			if !slices.Contains(s.tags, tag) {
				s.tags = append(s.tags, tag)
			}
		}
	}
}

// trim takes what has left off the limits.
func (s *blocksStep) trim() {
	for _, tag := range s.tags {
		old := s.memoryBlocks.counts[tag]
		next := memoryCount{total: old.total, first: blockOf(s.now, tag.period) - tag.span + 1, blocks: maps.Clone(old.blocks)}
		if next.blocks == nil {
			next.blocks = make(map[int64]int64)
		}
		for b, n := range old.blocks {
			if b < next.first {
				next.total -= n
				delete(next.blocks, b)
			}
		}
		next.total = max(0, next.total)
		s.counts = append(s.counts, next)
	}
}

// begin has limits that are new to the key begin with what one at least as long has counted, or else with the most that any has.
func (s *blocksStep) begin(exists bool) {
	for i, tag := range s.mine.tags {
		if _, known := s.memoryBlocks.counts[tag]; known || !exists {
			continue
		}
		long, most := int64(lua.Whole), int64(0)
		for j, other := range s.tags {
			if _, known := s.memoryBlocks.counts[other]; known {
				most = max(most, s.counts[j].total)
				if (other.span-1)*other.period >= max(tag.span-1, 1)*tag.period {
					long = min(long, s.counts[j].total)
				}
			}
		}
		for _, l := range s.leases {
			s.change(i, l.End, l.Out)
		}
		if long == lua.Whole {
			long = most
		}
		s.change(i, s.now, max(0, long-s.counts[i].total))
	}
}

// change counts k tokens more, or fewer but no fewer than none, at a time, in a limit that still counts it.
func (s *blocksStep) change(i int, at, k int64) {
	c := &s.counts[i]
	b := blockOf(at, s.tags[i].period)
	if k == 0 || b < c.first {
		return
	}
	after := max(0, c.blocks[b]+k)
	c.total += after - c.blocks[b]
	if c.blocks[b] = after; after == 0 {
		delete(c.blocks, b)
	}
}

func (s *blocksStep) count(at, k int64) {
	for i := range s.tags {
		s.change(i, at, k)
	}
}

// level reports what the tightest limit has left, and its number.
func (s *blocksStep) level() (tight, which int64) {
	tight, which = lua.Whole, 1
	for i, l := range s.limits {
		if left := l.Cap - s.counts[i].total; left < tight {
			tight, which = left, int64(i)+1
		}
	}
	return tight, which
}

func (s *blocksStep) reply(code lua.Code, grant, retry, left int64) lua.Reply {
	tight, which := s.level()
	clear := int64(0)
	for i, tag := range s.mine.tags {
		if s.counts[i].total > 0 {
			clear = max(clear, s.end(tag)-s.server-s.behind)
		}
	}
	return lua.Reply{
		Code: code, Grant: grant, Level: tight, Retry: retry, Active: s.active, TTLLeft: left, Now: s.server, Epoch: s.born,
		Flags: s.flags, Which: which, Reset: clear, Stamp: s.now,
	}
}

// sweepEnded drops the records of ended leases: their tokens stay where they ended. It reports whether the caller's lives.
func (s *blocksStep) sweepEnded(own lua.Record) (lives bool) {
	s.wants, s.active, s.sweep, s.latest = 0, 0, 0, 0
	for id, l := range s.leases {
		if l.End <= s.now {
			delete(s.leases, id)
			continue
		}
		s.wants, s.latest = s.wants+l.Want, max(s.latest, l.End)
		if l.Out+l.Want > 0 {
			s.active++
		}
	}
	if s.latest > 0 {
		s.sweep = s.now + (s.TTL+1)/2
	}
	return own.End > s.now
}

// settle moves what is still held to the new end, what was spent to now, and uncounts what never came or comes back.
func (s *blocksStep) settle(own lua.Record, owned bool) (charged int64) {
	out := int64(0)
	if owned {
		s.wants = max(0, s.wants-own.Want)
		if own.Out+own.Want > 0 {
			s.active = max(0, s.active-1)
		}
		s.count(own.End, -own.Out)
		if out = own.Out; s.Ack < own.Seq {
			out -= own.Grant
			charged = own.Debt
		}
		out -= min(s.Ret, out)
		s.count(min(s.now, own.End), max(0, out-s.Hold))
	}
	if s.Hold > out {
		s.flags += lua.Adopted
	}
	if !owned && s.Ack > 0 || owned && s.Ack > own.Seq {
		s.flags += lua.Unrecorded
	}
	s.count(s.stop, s.Hold)
	return charged
}

// clearAll lets the counts fall to what is out in leases.
func (s *blocksStep) clearAll() {
	for i := range s.counts {
		s.counts[i].total, s.counts[i].blocks = 0, make(map[int64]int64)
	}
	for id, l := range s.leases {
		if id != s.Lease {
			s.count(l.End, l.Out)
		}
	}
	s.count(s.stop, s.Hold)
}

// retry reports how long until as many blocks have left as hold the tokens that are missing, in the limit that needs longest.
func (s *blocksStep) retry(least, which int64) (after, by int64) {
	after, by = 1, which
	for i, l := range s.limits {
		c := s.counts[i]
		over, b := c.total+least-l.Cap, c.first
		if over <= 0 {
			continue
		}
		for ; over > 0 && b < c.first+2*l.Span; b++ {
			over -= c.blocks[b]
		}
		if over > 0 { // leases that outlive the window hold them
			b = blockOf(max(s.now, s.latest), l.Period) + 1
		}
		if wait := (b-1+l.Span)*l.Period - s.server - s.behind; wait > after {
			after, by = wait, int64(i)+1
		}
	}
	return after, by
}

// fields implements memoryState.
func (k *memoryBlocks) fields() map[string]string {
	f := map[string]string{
		"v": "sw2", "c": decimal(k.born), "t": decimal(k.last), "z": decimal(k.behind), "x": decimal(k.until),
	}
	if k.lends {
		f["w"], f["a"], f["g"], f["e"] = decimal(k.wants), decimal(k.active), decimal(k.sweep), decimal(k.latest)
	}
	for id, l := range k.leases {
		f["p"+id] = l.String()
	}
	f["u"] = versionsText(k.use)
	for tag, c := range k.counts {
		f[tag.String()] = decimal(c.total)
		for b, n := range c.blocks {
			f[tag.String()+":"+decimal(b)] = decimal(n)
		}
	}
	return f
}

// versionsText is what the script keeps of the versions.
func versionsText(all []memoryVersion) string {
	var b strings.Builder
	for i, v := range all {
		if i > 0 {
			b.WriteByte(';')
		}
		for j, tag := range v.tags {
			if j > 0 {
				b.WriteByte(',')
			}
			b.WriteString(tag.String())
		}
		if v.until > 0 {
			b.WriteString("@" + decimal(v.until))
		}
	}
	return b.String()
}

// clone implements memoryState.
func (k *memoryBlocks) clone() memoryState {
	twin := *k
	twin.leases = maps.Clone(k.leases)
	twin.counts = make(map[memoryTag]memoryCount, len(k.counts))
	for tag, c := range k.counts {
		c.blocks = maps.Clone(c.blocks)
		twin.counts[tag] = c
	}
	return &twin
}
