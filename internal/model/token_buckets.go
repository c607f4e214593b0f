package model

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// tokenBuckets is lua/token_buckets.lua in Go. No product below is an addend: see token_bucket.go.
type tokenBuckets struct {
	lending
	until    int64             // from then on the buckets are full and no lease is out
	overflow float64           // refill that all buckets lost at once
	levels   map[int64]float64 // by period
	stored   []storedLimit     // of each period
	noted    bool              // until when each governs is on record, because callers have different limits
}

// bucketsCall is the state of one call: its limits and their buckets.
type bucketsCall struct {
	*tokenBuckets
	limits  []lua.Limit
	buckets []refillable
	unknown bool  // a limit is new to the key
	lastUse int64 // of what governed until now, if nobody had a smaller limit
}

// run implements state.
func (k *tokenBuckets) run(s *step) (keep int64, written bool) {
	return lease(s, k, &k.lending, &bucketsCall{tokenBuckets: k, limits: s.Limits()})
}

func (c *bucketsCall) load(s *step) {
	if !s.exists {
		c.overflow = lua.OverflowStart
	}
	c.lastUse = max(s.last, s.latest)
	c.buckets = make([]refillable, len(c.limits))
	for i, l := range c.limits {
		b := refillable{tokens: float64(l.Cap - s.escrow), stored: storedLimit{Limit: l, maxCap: l.Cap}}
		level, known := c.levels[l.Period]
		if known {
			b = refillable{tokens: level, stored: c.storedLimitOf(l)}
		} else {
			c.unknown = true
		}
		b.govern(s, c.held(b.stored), l)
		c.buckets[i] = b
	}
	s.expiring = s.expiring && c.noted && s.now > s.last
	s.notes = c.noted || s.lesser || s.exists && s.changed && s.latest > s.now
}

// held returns a stored limit with the time until when it governs.
func (c *bucketsCall) held(t storedLimit) storedLimit {
	if !c.noted || t.capUntil == 0 {
		return t.unnoted(c.lastUse)
	}
	return t
}

// storedLimitOf returns the stored limit of a period that the key knows.
func (k *tokenBuckets) storedLimitOf(l lua.Limit) storedLimit {
	return k.stored[slices.IndexFunc(k.stored, func(t storedLimit) bool { return t.Period == l.Period })]
}

func (c *bucketsCall) memory(s *step) (longest float64) {
	for i := range c.buckets {
		longest = max(longest, c.buckets[i].fillsFromLowest(s))
	}
	return longest
}

func (c *bucketsCall) refill(s *step) {
	if s.replays {
		for i := range c.buckets {
			c.buckets[i].look(s)
		}
		return
	}
	s.guard()
	lost := float64(lua.OverflowEnd)
	for i := range c.buckets {
		lost = min(lost, c.buckets[i].fill(s))
	}
	c.overflow = min(c.overflow+lost, lua.OverflowEnd)
}

func (c *bucketsCall) takeBack(_ *step, n int64) {
	for i := range c.buckets {
		c.buckets[i].tokens += float64(n)
	}
}

func (c *bucketsCall) carry(s *step, out int64) {
	if s.Hold > out {
		c.takeBack(s, out-s.Hold)
	}
}

func (c *bucketsCall) charge(s *step) {
	due := s.due(c.overflow)
	for i := range c.buckets {
		c.buckets[i].charge(s, due)
	}
	s.charged += int64(due)
}

func (c *bucketsCall) refunds(*step, int64) bool { return true }

func (c *bucketsCall) level(*step) (tokens, which int64) {
	least, which := c.buckets[0].tokens, int64(1)
	for i, b := range c.buckets {
		if b.tokens < least {
			least, which = b.tokens, int64(i)+1
		}
	}
	return wholeTokens(least), which
}

func (c *bucketsCall) lend(s *step, n int64) { c.takeBack(s, -n) }

func (c *bucketsCall) retry(s *step) (after, which int64) {
	us, longest, which := 0.0, 0.0, int64(1)
	for i, l := range c.limits {
		longest = max(longest, c.buckets[i].next.fills())
		if wait := c.buckets[i].wait(s, l); wait > us {
			us, which = wait, int64(i)+1
		}
	}
	return s.soonerThanRefill(us, longest), which
}

func (c *bucketsCall) answer(s *step) {
	full := 0.0
	for _, b := range c.buckets {
		full = max(full, b.full(b.next.Cap))
	}
	s.reply.Overflow, s.reply.Reset, s.reply.Stamp = int64(c.overflow), int64(min(full, float64(lua.Whole-1))), s.now
}

func (c *bucketsCall) store(s *step) (keep int64) {
	if c.levels == nil {
		c.levels = make(map[int64]float64)
	}
	if s.changed || s.notes || c.unknown {
		c.stored = c.newStored()
	}
	c.noted = s.notes
	c.until = max(c.until, s.latest)
	for i, l := range c.limits {
		b := &c.buckets[i]
		c.levels[l.Period] = b.tokens
		full := float64(max(s.now, s.latest)) + b.full(b.next.maxCap) // room that is out fills only afterwards
		c.until = max(c.until, int64(min(full, float64(lua.Whole-1))))
	}
	ms := math.Ceil(float64(max(c.until, s.now)-s.server-s.behind)/1000) + 1000
	return int64(min(ms, maxKeep))
}

// newStored returns the limits to store: the call's own, and then those of periods that the call does not have.
func (c *bucketsCall) newStored() (all []storedLimit) {
	for i := range c.limits {
		all = append(all, c.buckets[i].next)
	}
	for _, t := range c.stored {
		if !slices.ContainsFunc(c.limits, func(l lua.Limit) bool { return l.Period == t.Period }) {
			all = append(all, c.held(t))
		}
	}
	return all
}

// fields implements state.
func (k *tokenBuckets) fields() map[string]string {
	f := k.lending.fields(lua.TokenBuckets)
	f["x"], f["s"] = decimal(k.until), double(k.overflow)
	for period, level := range k.levels {
		f["l"+decimal(period)] = double(level)
	}
	all := make([]string, len(k.stored))
	for i, t := range k.stored {
		all[i] = decimal(t.Period) + ":" + t.text(t.Cap, t.Tokens)
	}
	f["r"] = strings.Join(all, ",")
	if k.noted {
		for i, t := range k.stored {
			all[i] = decimal(t.Period) + ":" + decimal(t.capUntil) + "/" + decimal(t.rateUntil)
		}
		f["h"] = strings.Join(all, ",")
	}
	return f
}

// clone implements state.
func (k *tokenBuckets) clone() state {
	twin := *k
	twin.leases, twin.levels = maps.Clone(k.leases), maps.Clone(k.levels)
	return &twin
}
