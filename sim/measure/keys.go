package measure

import (
	"cmp"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// keys are the keys of a limit that were asked for and whose buckets are not full again.
type keys struct {
	limit   int
	tokens  int64
	burst   int64
	per     time.Duration
	refill  float64 // ns per token, +Inf for a rate of 0
	windows int
	all     map[string]*key
	sweepAt int // number of keys at which the next sweep comes
}

// key is what is kept of one.
type key struct {
	bucket ideal.Bucket
	tracks []*track // by window; nil before the key is admitted there

	id       uint64  // hash of limit and name, the same in each run
	rest     float64 // ns: from when on the bucket is full and the policers are empty, at the latest
	underWay int     // requests that are not decided
}

// track is what a key has in a window.
type track struct {
	*ideal.Policer
	counts bool // the policer has seen an admission of the window, and forgotten earlier ones
}

// sweepLeast is the number of keys below which there is no sweep.
const sweepLeast = 4096

func newKeys(l *scenario.Limit, limit, windows int) *keys {
	k := &keys{
		limit: limit, tokens: max(l.Tokens, 0), per: max(time.Duration(l.Per), 1), windows: windows,
		all: make(map[string]*key), sweepAt: sweepLeast,
	}
	k.burst = cmp.Or(max(l.Burst, 0), k.tokens)
	k.refill = float64(k.per) / float64(k.tokens)
	return k
}

// of returns the key of a name.
func (k *keys) of(name string, now time.Duration) *key {
	if e := k.all[name]; e != nil {
		return e
	}
	if len(k.all) >= k.sweepAt {
		k.forget(now)
	}
	e := &key{
		bucket: *ideal.NewBucket(k.tokens, k.per, k.burst), tracks: make([]*track, k.windows),
		id: stable.Mix(stable.Hash(name) + uint64(k.limit)),
	}
	k.all[name] = e
	return e
}

// forget drops the keys whose buckets are full again, because they are as if nobody had asked for
// them. It costs the same for each key on average, because it sweeps when the number of keys has
// doubled.
func (k *keys) forget(now time.Duration) {
	for name, e := range k.all {
		if e.underWay == 0 && e.rest <= float64(now) {
			delete(k.all, name)
		}
	}
	k.sweepAt = max(sweepLeast, 2*len(k.all))
}

// use moves the rest of a key on by what tokens take to flow back.
func (k *keys) use(e *key, at time.Duration, tokens int64) {
	e.rest = max(e.rest, float64(at)) + float64(tokens)*k.refill + 1
}

// take asks the ideal bucket.
func (k *keys) take(e *key, at time.Duration, tokens int64) bool {
	k.use(e, at, tokens)
	return e.bucket.Take(int64(at), tokens)
}

// admit shows an admission to the policers of the windows of a time. A policer that sees what came
// before its window, as the warm-up's does, counts the intervals that end in the window.
func (k *keys) admit(e *key, windows []*window, at time.Duration, tokens int64) {
	k.use(e, at, tokens)
	for _, w := range windows {
		if at < w.seen || at >= w.to {
			continue
		}
		t := e.tracks[w.number]
		if t == nil {
			t = &track{Policer: ideal.NewPolicer(k.tokens, k.per, k.burst)}
			e.tracks[w.number] = t
		}
		if at >= w.from && !t.counts {
			t.Forget()
			t.counts = true
		}
		t.Admit(int64(at), tokens)
		if p := &w.limits[k.limit]; t.counts {
			p.over = max(p.over, t.Worst().Over)
		}
	}
}
