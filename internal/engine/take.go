package engine

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Take decides whether a request for key that costs n tokens may go on now, takes them if so, and
// counts the request. If t is not nil, Take stores in it how the tokens can be returned. b is the
// key's bucket, nil if this process keeps none, and now is when it was decided.
func (l *Limiter) Take(ctx context.Context, key string, n int64, t *Tokens) (o local.Outcome, b *Bucket, now time.Duration) {
	mode := l.mode.Load()
	if mode&^ModeStanding != 0 {
		return l.takeInMode(ctx, key, n, t)
	}
	g := l.Group
	now = g.Now()
	if uint(len(key)-1) >= defaults.MaxKeyLength || uint64(n-1) >= MaxTokens {
		o, b = l.invalid(key, Valid(key, n))
		l.countRequest(o, key, n)
		return o, b, now
	}
	id := l.ID(key)
	if mode == 0 {
		if b = g.Cache.Hot(now, id.Policy); b == nil || !b.Hot().Is(id) { // as find does, without a call
			b = g.get(now, id)
		}
	} else {
		b = l.keptBucket(now, id, key)
	}
	if b != nil {
		if t != nil {
			t.setSource(b, lease)
		}
		if left, ok, renew := b.Hot().Take(now, n); ok {
			if renew {
				b.apply(now, b.Renew(now))
			}
			o = local.Decided(b.Policy(), local.Granted, local.Local, left, 0)
			if n != 1 { // one token is counted by its bucket
				l.countRequest(o, key, n)
			}
			if mode != 0 {
				l.Standing.fade()
				o = b.share().tell(o, now, n)
			}
			return o, b, now
		}
	}
	if mode != 0 {
		if o, ok := l.takeShare(now, b, id, n, t); ok {
			l.countRequest(o, key, n)
			return o, b, now
		}
		if b == nil {
			b = g.find(now, id)
		}
	}
	if t == nil {
		if o, ok := l.decideAtOnce(now, b, key, n); ok {
			if mode != 0 {
				o = b.share().tell(o, now, n)
			}
			return o, b, now
		}
		t = &Tokens{Limiter: l, Key: key, Cost: n}
	}
	t.setSource(b, lease)
	return t.ask(ctx, now)
}

// keptBucket returns the bucket of a key that may have a standing share. It makes none if the limit
// is known without it: the key needs one only if its share does not have the tokens.
func (l *Limiter) keptBucket(now time.Duration, id local.ID, key string) *Bucket {
	g := l.Group
	if l.settings.Load().Initial.Rule == local.ByLimit {
		return g.Cache.Lookup(now, g.Cache.Hash(id), id)
	}
	b := g.find(now, id)
	l.resolve(b, key)
	return b
}

// decideAtOnce decides without Redis if the lease does not hold the tokens: by a known denial, or
// by the fail mode. It reports false if it cannot decide. A request that does the same costs half
// as much again.
func (l *Limiter) decideAtOnce(now time.Duration, b *Bucket, key string, n int64) (o local.Outcome, ok bool) {
	p := b.Policy()
	if p.Rule != local.ByLimit || n > p.Cap || l.Group.Closed.Load() {
		return o, false
	}
	node := b.unhealthy()
	if node == nil {
		if o, ok = b.Hot().Refuse(now, n); !ok {
			return o, false
		}
		b.Hot().CountRefused(n)
		if n != 1 {
			l.countRequest(o, key, n)
		}
		return o, true
	}
	if node.ProbeDue(now) {
		return o, false
	}
	if o, ok = b.Hot().TryFailMode(now, n); ok {
		b.Hot().CountFailMode(n)
	} else if o, ok = b.fallBack(now, n); !ok {
		return o, false
	}
	l.countRequest(o, key, n)
	return o, true
}

// takeInMode is Take of a Limiter that is traced, unlimited or in shadow mode, or whose requests
// have carried limits.
func (l *Limiter) takeInMode(ctx context.Context, key string, n int64, t *Tokens) (local.Outcome, *Bucket, time.Duration) {
	if t == nil {
		t = &Tokens{Limiter: l, Key: key, Cost: n}
	}
	r := Request{{Tokens: *t}}
	p := r.Decide(ctx)
	r.End()
	*t = p.Tokens
	return p.Outcome, p.decider, p.now
}

// ask decides by a request of one part. That asks all sources, because a lease may have come
// meanwhile.
func (t *Tokens) ask(ctx context.Context, now time.Duration) (local.Outcome, *Bucket, time.Duration) {
	r := Request{{Tokens: *t, now: now, until: now + t.Limiter.Group.Budget}}
	r[0].decideByRule()
	r.walk(ctx)
	p := r.finish()
	r.End()
	*t = p.Tokens
	return p.Outcome, p.decider, p.now
}
