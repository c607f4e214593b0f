package measure

import (
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// keys are the keys of a policy that were asked for and are not at rest again.
type keys struct {
	limit   int
	policy  *tiered.Policy
	begin   time.Time // of the run
	windows int
	all     map[string]*key
	sweepAt int     // number of keys at which the next sweep comes
	common  *limits // of keys without a limit of their own; nil if the windows of each are others
}

// key is what is kept of one.
type key struct {
	limits *limits
	takers []taker
	tracks []*track // by window; nil before the key is admitted there

	id       uint64  // hash of limit and name, the same in each run
	rest     float64 // ns: from when on the key is as if nobody had asked for it, at the latest
	underWay int     // requests that are not decided
}

// track is what a key has in a window.
type track struct {
	judges []judge
	counts bool // the judges have seen an admission of the window, and forgotten earlier ones
}

// sweepLeast is the number of keys below which there is no sweep.
const sweepLeast = 4096

func newKeys(p *tiered.Policy, begin time.Time, limit, windows int) *keys {
	k := &keys{
		limit: limit, policy: p, begin: begin, windows: windows, all: make(map[string]*key), sweepAt: sweepLeast,
	}
	if !lua.Algorithm(p.Algorithm).Has(lua.Phased) {
		k.common = limitsOf(p, p.Limit, "", begin)
	}
	return k
}

// limitsOf returns the limits of a key.
func (k *keys) limitsOf(name string, own tiered.Limit) *limits {
	switch {
	case own != (tiered.Limit{}):
		return limitsOf(k.policy, own, name, k.begin)
	case k.common != nil:
		return k.common
	}
	return limitsOf(k.policy, k.policy.Limit, name, k.begin)
}

// of returns the key of a name, which may have a limit of its own.
func (k *keys) of(name string, own tiered.Limit, now time.Duration) *key {
	if e := k.all[name]; e != nil {
		return e
	}
	if len(k.all) >= k.sweepAt {
		k.forget(now)
	}
	limits := k.limitsOf(name, own)
	e := &key{
		limits: limits, takers: limits.takers(), tracks: make([]*track, k.windows),
		id: stable.Mix(stable.Hash(name) + uint64(k.limit)),
	}
	k.all[name] = e
	return e
}

// forget drops the keys that are at rest again, because they are as if nobody had asked for them. It
// costs the same for each key on average, because it sweeps when the number of keys has doubled.
func (k *keys) forget(now time.Duration) {
	for name, e := range k.all {
		if e.underWay == 0 && e.rest <= float64(now) {
			delete(k.all, name)
		}
	}
	k.sweepAt = max(sweepLeast, 2*len(k.all))
}

// use moves the rest of a key on by what tokens take to come back.
func (e *key) use(at time.Duration, tokens int64) {
	e.rest = e.limits.rests(e.rest, at, tokens)
}

// take asks the ideal limiter: each limit must have the tokens.
func (e *key) take(at time.Duration, tokens int64) bool {
	e.use(at, tokens)
	if len(e.takers) == 1 {
		return e.takers[0].Take(int64(at), tokens)
	}
	for _, t := range e.takers {
		if !t.Has(int64(at), tokens) {
			return false
		}
	}
	for _, t := range e.takers {
		t.Take(int64(at), tokens)
	}
	return true
}

// allows is what the ideal limiter lets through in a time, beside a burst: what the strictest limit
// does.
func (e *key) allows(from, to time.Duration) float64 {
	least := math.Inf(1)
	for _, t := range e.takers {
		least = min(least, t.Allows(int64(from), int64(to), e.limits.burst))
	}
	return least
}

// admit shows an admission to the judges of the windows of a time. A judge that sees what came
// before its window, as the warm-up's does, counts what ends in the window.
func (k *keys) admit(e *key, windows []*window, asked, at time.Duration, tokens int64) {
	e.use(at, tokens)
	for _, w := range windows {
		if at < w.seen || at >= w.to {
			continue
		}
		t := e.tracks[w.number]
		if t == nil {
			t = &track{judges: e.limits.judges()}
			e.tracks[w.number] = t
		}
		first := at >= w.from && !t.counts
		t.counts = t.counts || first
		for _, j := range t.judges {
			if first {
				j.Forget()
			}
			j.Admit(int64(asked), int64(at), tokens)
			if p := &w.limits[k.limit]; t.counts {
				p.over = max(p.over, j.Over())
			}
		}
	}
}
