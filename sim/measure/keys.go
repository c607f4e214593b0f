package measure

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// keys are the keys of a limit that were asked for and are not at rest.
type keys struct {
	tokens, burst int64
	per           time.Duration
	rate          float64 // tokens per second
	refill        float64 // ns per token, +Inf for a rate of 0
	lanes         int
	fresh         ideal.Policer
	all           map[string]*key
	sweepAt       int // number of keys at which the next sweep comes
}

// key is what is kept of one: 120 bytes, 80 of its ideal bucket, 176 per lane, and its name in the map. With one
// fault and no windows of expectations there are two lanes, and about 550 bytes in all.
type key struct {
	bucket     ideal.Bucket
	slots      []track // by lane
	starvation starvation

	id       uint64        // hash of limit and name, the same in each run
	full     time.Duration // when the ideal bucket is full if nobody asks
	drained  time.Duration // when all policers are empty if nothing is admitted
	step     int           // the last in which it was asked for
	underWay int           // requests that are not decided
}

// track is what a key has in the window of its lane; nil: in none.
type track struct {
	policer ideal.Policer
	of      *window
	counts  bool // the policer has seen an admission of the window, and forgotten earlier ones

	share share // of what the ideal admits, of the requests made in the window of
	made  *window
}

// sweepLeast is the number of keys below which there is no sweep.
const sweepLeast = 4096

func newKeys(l *scenario.Limit, lanes int) *keys {
	k := &keys{
		tokens: max(l.Tokens, 0), per: max(time.Duration(l.Per), 1), burst: l.Burst, lanes: lanes,
		all: make(map[string]*key), sweepAt: sweepLeast,
	}
	if k.burst <= 0 {
		k.burst = k.tokens
	}
	k.rate = float64(k.tokens) / k.per.Seconds()
	k.refill = float64(k.per) / float64(k.tokens)
	k.fresh = *ideal.NewPolicer(k.tokens, k.per, k.burst)
	return k
}

// of returns the key of a name.
func (k *keys) of(name string, limit int, now time.Duration, step int) *key {
	if e := k.all[name]; e != nil {
		return e
	}
	if len(k.all) >= k.sweepAt {
		k.forget(limit, now, step)
	}
	e := &key{
		bucket: *ideal.NewBucket(k.tokens, k.per, k.burst), slots: make([]track, k.lanes), step: -1,
		id: stable.Mix(stable.Hash(name) + uint64(limit)),
	}
	k.all[name] = e
	return e
}

// forget drops the keys that are at rest. Their bucket is full, their policers are empty and they are not starved, so
// they are as if nobody had asked for them. Only fairness takes a key that comes back for another one. The cost is
// constant on average: a sweep comes when the keys have doubled.
func (k *keys) forget(limit int, now time.Duration, step int) {
	for name, e := range k.all {
		if e.underWay == 0 && e.full <= now && e.drained <= now && e.step != step && !e.starvation.on(now) {
			for i := range e.slots {
				e.slots[i].atRest(limit)
			}
			delete(k.all, name)
		}
	}
	k.sweepAt = max(sweepLeast, 2*len(k.all))
}

// after returns when tokens taken at a time have flowed back, with those before them; rounded up.
func (k *keys) after(was, at time.Duration, tokens int64) time.Duration {
	wait := math.Ceil(float64(tokens)*k.refill) + 1
	if was = max(was, at); wait >= float64(forever-was) {
		return forever
	}
	return was + time.Duration(wait)
}

// take asks the ideal bucket.
func (k *keys) take(e *key, at time.Duration, tokens int64) bool {
	if !e.bucket.Take(int64(at), tokens) {
		return false
	}
	e.full = k.after(e.full, at, tokens)
	return true
}

// admit shows an admission to the policers of the windows of a time. A policer that sees what came before its window,
// as the warm-up's does, counts the intervals that end in the window.
func (k *keys) admit(e *key, windows []*window, limit int, at time.Duration, tokens int64) {
	e.drained = k.after(e.drained, at, tokens)
	for _, w := range windows {
		s := &e.slots[w.lane]
		if s.of != w {
			s.policer, s.of, s.counts = k.fresh, w, false
		}
		if at >= w.from && !s.counts {
			s.policer.Forget()
			s.counts = true
		}
		s.policer.Admit(int64(at), tokens)
		if over := s.policer.Worst().Over; s.counts && over > w.over[limit] {
			w.over[limit] = over
		}
	}
}

// served records, in the windows of a request that is decided, what its key was due and what it got.
func (k *keys) served(e *key, windows []*window, limit int, due, got int64) {
	for _, w := range windows {
		s := &e.slots[w.lane]
		if s.made != w {
			if s.made != nil && s.made.from > w.from {
				continue // the lane has gone on to a later window: the request counts in neither
			}
			s.atRest(limit)
			s.made, s.share = w, share{}
		}
		s.share.demand += due
		s.share.admitted += got
	}
}

// atRest hands over what the key had in its window.
func (s *track) atRest(limit int) {
	if s.made != nil {
		s.made.parts[limit].add(s.share)
	}
}

// fairness returns that of all keys in a window: those at rest, and those that are kept.
func (k *keys) fairness(w *window, limit int) fairness {
	f := w.parts[limit]
	for _, e := range k.all {
		if s := &e.slots[w.lane]; s.made == w {
			f.add(s.share)
		}
	}
	return f
}
