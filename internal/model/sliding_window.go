package model

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// slidingWindow is lua/sliding_window.lua in Go.
type slidingWindow struct {
	lending
	until  int64 // until then something counts
	forgot int64 // time of the last reset: what was counted by then comes back no more; 0 for none
	use    []version
	stored map[limitTag]blockCount // by limit, of all versions
}

// version is one version of a policy whose limits are still counted.
type version struct {
	tags  []limitTag
	until int64 // when its last grant expires; 0 if it is the only version
}

// long returns its longest window in µs.
func (v version) long() (long int64) {
	for _, t := range v.tags {
		long = max(long, t.period*t.span)
	}
	return long
}

// limitTag identifies a limit of a key.
type limitTag struct{ period, span int64 }

func (t limitTag) String() string { return decimal(t.period) + "x" + decimal(t.span) }

// blockCount is what one limit counted.
type blockCount struct {
	total  int64
	first  int64 // first block that is counted
	blocks map[int64]int64
}

// maxVersions bounds the versions of a policy that a key counts for.
const maxVersions = 4

// slidingCall is the state of one call: its limits, and the counts that it changes.
type slidingCall struct {
	*slidingWindow
	limits []lua.Limit  // of this version; they decide
	tags   []limitTag   // of these limits, and behind them of other versions
	counts []blockCount // of the tags
	mine   version
	others []version
}

// run implements state.
func (k *slidingWindow) run(s *step) (keep int64, written bool) {
	return lease(s, k, &k.lending, &slidingCall{slidingWindow: k, limits: s.Limits()})
}

func (c *slidingCall) load(s *step) {
	s.guard()
	c.versions(s)
	c.trim(s)
	begun := c.begin(s)
	s.expiring = begun || len(c.others) > 0 && c.mine.until > 0 && 2*(c.mine.until-s.now) < c.mine.long()
	s.forgets = s.resets && s.SafeBy(s.server+s.TTL)
}

// blockOf returns the number of the block that contains an instant.
func blockOf(instant, period int64) int64 {
	return int64(math.Floor(float64(instant) / float64(period)))
}

// end returns an instant at which the limit counts nothing any more of what it counted by then.
func (t limitTag) end(then int64) int64 { return (blockOf(then, t.period) + t.span) * t.period }

// versions finds the other versions of the policy that are in use, and puts their limits behind the
// call's own.
func (c *slidingCall) versions(s *step) {
	for _, l := range c.limits {
		c.mine.tags = append(c.mine.tags, limitTag{l.Period, l.Span})
	}
	for _, v := range c.use {
		if v.until == 0 {
			v.until = s.lastUse + v.long()
		}
		switch {
		case slices.Equal(v.tags, c.mine.tags):
			if len(c.use) > 1 {
				c.mine.until = v.until
			}
		case v.until > s.now:
			c.others = append(c.others, v)
		}
	}
	for len(c.others) >= maxVersions {
		short := 0
		for i, v := range c.others {
			if v.long() < c.others[short].long() {
				short = i
			}
		}
		gone := c.others[short]
		c.others = slices.Delete(c.others, short, short+1)
		for i := range c.others { // it may come back until then
			c.others[i].until = max(c.others[i].until, gone.until)
		}
	}
	c.tags = slices.Clone(c.mine.tags)
	for _, v := range c.others {
		for _, tag := range v.tags {
			if !slices.Contains(c.tags, tag) {
				c.tags = append(c.tags, tag)
			}
		}
	}
}

// trim subtracts the blocks that have left the window.
func (c *slidingCall) trim(s *step) {
	for _, tag := range c.tags {
		old := c.stored[tag]
		first := blockOf(s.now, tag.period) - tag.span + 1
		next := blockCount{total: old.total, first: first, blocks: maps.Clone(old.blocks)}
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
		c.counts = append(c.counts, next)
	}
}

// begin gives a limit that is new to the key the blocks of another: of the one that counts least of
// those with an equal or longer window, or otherwise of the one that counts most. It reports
// whether there is a new limit.
func (c *slidingCall) begin(s *step) (begun bool) {
	for i, tag := range c.mine.tags {
		if _, known := c.stored[tag]; known || !s.exists {
			continue
		}
		begun = true
		from, long := -1, false
		for j, other := range c.tags {
			if _, known := c.stored[other]; !known {
				continue
			}
			enough := (other.span-1)*other.period >= max(tag.span-1, 1)*tag.period
			if from < 0 || enough && !long || enough && c.counts[j].total < c.counts[from].total ||
				!long && c.counts[j].total > c.counts[from].total {
				from, long = j, enough
			}
		}
		c.copyBlocks(s, i, from)
	}
	return begun
}

// copyBlocks gives limit i what limit from counts, or only what is leased if from is negative. A
// block counts at its end, or at the newest time if that is sooner, and what is leased where its
// lease ends.
func (c *slidingCall) copyBlocks(s *step, i, from int) {
	var held map[int64]int64
	var period int64
	if from >= 0 {
		held, period = maps.Clone(c.counts[from].blocks), c.tags[from].period
	}
	for _, l := range s.leases {
		c.change(i, l.End, l.Out)
		if from >= 0 {
			b := blockOf(l.End, period)
			held[b] = max(0, held[b]-l.Out)
		}
	}
	for b, n := range held { // sums: any order will do
		c.change(i, min((b+1)*period-1, s.last), n)
	}
}

// change adds k tokens at an instant to limit i, if the window still contains it. k may be
// negative; a block never falls below 0.
func (c *slidingCall) change(i int, at, k int64) {
	n := &c.counts[i]
	b := blockOf(at, c.tags[i].period)
	if k == 0 || b < n.first {
		return
	}
	after := max(0, n.blocks[b]+k)
	n.total += after - n.blocks[b]
	if n.blocks[b] = after; after == 0 {
		delete(n.blocks, b)
	}
}

func (c *slidingCall) count(at, k int64) {
	for i := range c.tags {
		c.change(i, at, k)
	}
}

// giveBack takes k tokens off that were counted at an instant or later: off the oldest blocks that
// count any.
func (c *slidingCall) giveBack(s *step, at, k int64) {
	for i, tag := range c.tags {
		n, b, left := &c.counts[i], blockOf(at, tag.period), k
		if b < n.first {
			continue
		}
		for last := blockOf(s.now, tag.period); b <= last && left > 0; b++ {
			off := min(left, n.blocks[b])
			c.change(i, b*tag.period, -off)
			left -= off
		}
	}
}

func (c *slidingCall) memory(*step) (longest float64) {
	for _, t := range c.tags {
		longest = max(longest, float64(t.span*t.period))
	}
	return longest
}

func (c *slidingCall) refill(*step) {}

func (c *slidingCall) takeBack(s *step, n int64) { c.count(s.own.End, -n) }

// carry moves the tokens that are still held to the new end of the lease, and those that were spent
// to now.
func (c *slidingCall) carry(s *step, out int64) {
	c.count(s.own.End, -out)
	c.count(min(s.now, s.own.End), max(0, out-s.Hold))
	c.count(s.leaseEnd, s.Hold)
}

func (c *slidingCall) charge(s *step) {
	if s.forgets {
		c.forgot = s.now
	}
	if at := min(s.At, s.now); s.Refund > 0 && s.safe && c.refunds(s, s.now) && at > c.forgot {
		c.giveBack(s, at, s.Refund)
	}
	if s.Debt > s.charged {
		for i := range c.tags {
			n := s.Debt - s.charged
			if i < len(c.limits) {
				n = min(n, max(0, c.limits[i].Cap-c.counts[i].total))
			}
			c.change(i, min(s.Since+s.behind, s.now), n)
		}
		s.charged = s.Debt
	}
	if s.forgets {
		c.clearAll(s)
	}
}

// clearAll resets the counts to what is out in leases.
func (c *slidingCall) clearAll(s *step) {
	for i := range c.counts {
		c.counts[i].total, c.counts[i].blocks = 0, make(map[int64]int64)
	}
	for id, l := range s.leases {
		if id != s.Lease && !(s.swept && l.End <= s.now) {
			c.count(l.End, l.Out)
		}
	}
	c.count(s.leaseEnd, s.Hold)
}

func (c *slidingCall) refunds(s *step, _ int64) bool { return s.exists && s.Epoch == s.epoch }

func (c *slidingCall) level(*step) (tokens, which int64) {
	tokens, which = lua.Whole, 1
	for i, l := range c.limits {
		if left := l.Cap - c.counts[i].total; left < tokens {
			tokens, which = left, int64(i)+1
		}
	}
	return tokens, which
}

// lend counts a grant now, or at the end of its lease.
func (c *slidingCall) lend(s *step, n int64) {
	at := s.now
	if s.borrows {
		at = s.leaseEnd
	}
	c.count(at, n)
}

// retry returns the µs until enough blocks have left the window of the limit that takes longest. A
// replay does not compute this.
func (c *slidingCall) retry(s *step) (after, which int64) {
	_, which = c.level(s)
	if after = 1; s.replays {
		return after, which
	}
	for i, l := range c.limits {
		n := c.counts[i]
		over, b := n.total+s.min-l.Cap, n.first
		if over <= 0 {
			continue
		}
		for ; over > 0 && b < n.first+2*l.Span; b++ {
			over -= n.blocks[b]
		}
		if over > 0 { // leases that outlive the window hold them
			b = blockOf(max(s.now, s.latest), l.Period) + 1
		}
		if wait := (b-1+l.Span)*l.Period - s.server - s.behind; wait > after {
			after, which = wait, int64(i)+1
		}
	}
	return s.sooner(after), which
}

func (c *slidingCall) answer(s *step) {
	s.reply.Stamp = s.now
	till := s.now
	if s.escrow > 0 { // what is out counts where its lease ends
		if till = max(till, s.latest); s.Dry() && s.Hold > 0 {
			till = max(till, s.leaseEnd)
		}
	}
	for i, tag := range c.mine.tags {
		if c.counts[i].total > 0 {
			s.reply.Reset = max(s.reply.Reset, tag.end(till)-s.server-s.behind)
		}
	}
}

func (c *slidingCall) store(s *step) (keep int64) {
	at := s.now
	if s.Lease != "" {
		at = s.leaseEnd
	}
	if c.mine.until = max(c.mine.until, at+c.mine.long()); len(c.others) == 0 {
		c.mine.until = 0
	}
	if s.forgets { // what is taken from here on was not counted by then
		s.last++
	}
	c.use = append([]version{c.mine}, c.others...)
	c.stored = make(map[limitTag]blockCount, len(c.tags))
	for i, tag := range c.tags {
		c.stored[tag] = c.counts[i]
		c.until = max(c.until, tag.end(max(s.now, s.latest)))
	}
	return keepFor(c.until - s.server - s.behind)
}

// fields implements state.
func (k *slidingWindow) fields() map[string]string {
	f := k.lending.fields(lua.SlidingWindow)
	f["x"], f["u"] = decimal(k.until), versionsText(k.use)
	if k.forgot > 0 {
		f["f"] = decimal(k.forgot)
	}
	for tag, c := range k.stored {
		f[tag.String()] = decimal(c.total)
		for b, n := range c.blocks {
			f[tag.String()+":"+decimal(b)] = decimal(n)
		}
	}
	return f
}

// versionsText returns the versions as the script stores them.
func versionsText(all []version) string {
	texts := make([]string, len(all))
	for i, v := range all {
		tags := make([]string, len(v.tags))
		for j, tag := range v.tags {
			tags[j] = tag.String()
		}
		if texts[i] = strings.Join(tags, ","); v.until > 0 {
			texts[i] += "@" + decimal(v.until)
		}
	}
	return strings.Join(texts, ";")
}

// clone implements state.
func (k *slidingWindow) clone() state {
	twin := *k
	twin.leases = maps.Clone(k.leases)
	twin.stored = make(map[limitTag]blockCount, len(k.stored))
	for tag, c := range k.stored {
		c.blocks = maps.Clone(c.blocks)
		twin.stored[tag] = c
	}
	return &twin
}
