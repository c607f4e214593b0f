package model

import (
	"maps"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// tokenBuckets is lua/token_buckets.lua in Go. No product below is an addend: see token_bucket.go.
type tokenBuckets struct {
	lending
	refilling
	until  int64             // from then on the buckets are full and no lease is out
	levels map[int64]float64 // by period
	stored []storedLimit     // of each period
	noted  bool              // until when each governs is on record, because callers have different limits
}

// run implements state.
func (k *tokenBuckets) run(s *step) (keep int64, written bool) {
	return lease(s, k, &k.lending, k)
}

func (k *tokenBuckets) load(s *step) {
	if !s.exists {
		k.overflow = lua.OverflowStart
	}
	for _, l := range s.Limits() {
		b := refillable{own: l, tokens: float64(l.Cap - s.escrow), stored: storedLimit{Limit: l, maxCap: l.Cap}}
		if level, known := k.levels[l.Period]; known {
			of := func(t storedLimit) bool { return t.Period == l.Period }
			b.tokens, b.stored = level, k.stored[slices.IndexFunc(k.stored, of)]
		}
		b.govern(s, k.held(s, b.stored))
		s.buckets = append(s.buckets, b)
	}
	s.expiring = s.expiring && k.noted && s.now > s.last
	s.notes = k.noted || s.lesser || s.exists && s.changed && s.latest > s.now
}

// held returns a stored limit with the time until when it governs.
func (k *tokenBuckets) held(s *step, t storedLimit) storedLimit {
	if !k.noted || t.capUntil == 0 {
		return t.unnoted(s.lastUse)
	}
	return t
}

func (k *tokenBuckets) charge(s *step) {
	due := s.due(k.overflow)
	for i := range s.buckets {
		s.buckets[i].charge(s, due)
	}
	s.charged += int64(due)
}

func (k *tokenBuckets) answer(s *step) {
	full := 0.0
	for _, b := range s.buckets {
		full = max(full, b.full(b.next.Cap))
	}
	s.reply.Overflow, s.reply.Reset, s.reply.Stamp = int64(k.overflow), int64(min(full, float64(lua.Whole-1))), s.now
}

func (k *tokenBuckets) store(s *step) (keep int64) {
	if k.levels == nil {
		k.levels = make(map[int64]float64)
	}
	isNew := func(b refillable) bool { _, known := k.levels[b.own.Period]; return !known }
	if s.changed || s.notes || slices.ContainsFunc(s.buckets, isNew) {
		k.stored = k.newStored(s)
	}
	k.noted = s.notes
	k.until = max(k.until, s.latest)
	for i := range s.buckets {
		b := &s.buckets[i]
		k.levels[b.own.Period] = b.tokens
		full := float64(max(s.now, s.latest)) + b.full(b.next.maxCap) // room that is out fills only afterwards
		k.until = max(k.until, int64(min(full, float64(lua.Whole-1))))
	}
	return keepFor(max(k.until, s.now) - s.server - s.behind)
}

// newStored returns the limits to store: the call's own, and then those of periods that the call
// does not have.
func (k *tokenBuckets) newStored(s *step) (all []storedLimit) {
	for _, b := range s.buckets {
		all = append(all, b.next)
	}
	for _, t := range k.stored {
		if !slices.ContainsFunc(s.buckets, func(b refillable) bool { return b.own.Period == t.Period }) {
			all = append(all, k.held(s, t))
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
