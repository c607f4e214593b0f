package measure

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// keys are the keys of a limit that were asked for and are not at rest.
type keys struct {
	tokens, burst int64
	per           time.Duration
	refill        float64 // ns per token, +Inf for a rate of 0
	windows       int
	fresh         ideal.Policer
	all           map[string]*key
	sweepAt       int // number of keys at which the next sweep comes
}

// key is what is kept of one.
type key struct {
	bucket ideal.Bucket
	tracks []*track // by window; nil before the key is admitted there

	id       uint64        // hash of limit and name, the same in each run
	full     time.Duration // when the ideal bucket is full if nobody asks
	drained  time.Duration // when all policers are empty if nothing is admitted
	underWay int           // requests that are not decided
}

// track is what a key has in a window.
type track struct {
	policer ideal.Policer
	counts  bool // the policer has seen an admission of the window, and forgotten earlier ones
}

// sweepLeast is the number of keys below which there is no sweep.
const sweepLeast = 4096

func newKeys(l *scenario.Limit, windows int) *keys {
	k := &keys{
		tokens: max(l.Tokens, 0), per: max(time.Duration(l.Per), 1), burst: l.Burst, windows: windows,
		all: make(map[string]*key), sweepAt: sweepLeast,
	}
	if k.burst <= 0 {
		k.burst = k.tokens
	}
	k.refill = float64(k.per) / float64(k.tokens)
	k.fresh = *ideal.NewPolicer(k.tokens, k.per, k.burst)
	return k
}

// of returns the key of a name.
func (k *keys) of(name string, limit int, now time.Duration) *key {
	if e := k.all[name]; e != nil {
		return e
	}
	if len(k.all) >= k.sweepAt {
		k.forget(now)
	}
	e := &key{
		bucket: *ideal.NewBucket(k.tokens, k.per, k.burst), tracks: make([]*track, k.windows),
		id: stable.Mix(stable.Hash(name) + uint64(limit)),
	}
	k.all[name] = e
	return e
}

// forget drops the keys that are at rest. Their buckets are full and their policers are empty, so they are as if nobody
// had asked for them. The cost is constant on average, because a sweep comes when the keys have doubled.
func (k *keys) forget(now time.Duration) {
	for name, e := range k.all {
		if e.underWay == 0 && e.full <= now && e.drained <= now {
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
		if at < w.seen || at >= w.to {
			continue
		}
		t := e.tracks[w.number]
		if t == nil {
			t = &track{policer: k.fresh}
			e.tracks[w.number] = t
		}
		if at >= w.from && !t.counts {
			t.policer.Forget()
			t.counts = true
		}
		t.policer.Admit(int64(at), tokens)
		if p := &w.limits[limit]; t.counts {
			p.over = max(p.over, t.policer.Worst().Over)
		}
	}
}
