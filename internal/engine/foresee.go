package engine

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Foresee is Take, but takes nothing and counts nothing: it only looks at the sources. Redis is
// asked what it would say. limit is what the request carries, or nil.
func (l *Limiter) Foresee(ctx context.Context, key string, n int64, limit *Resolved) Told {
	p := l.partToForesee(ctx, key, n)
	for range maxTries {
		p.limit = l.limitOf(key, limit)
		p.bucket, p.now = l.bucketToPeek(key, p.limit), l.Group.Now()
		if t, ok := p.foresee(ctx); ok {
			return t
		}
	}
	return Told{Outcome: local.Decided(l.settings.Load().Initial, local.Unavailable, local.Nowhere, 0, 0), Key: key, Cost: n}
}

// partToForesee returns a part that is only looked at.
func (l *Limiter) partToForesee(ctx context.Context, key string, n int64) Part {
	return Part{Tokens: Tokens{Limiter: l, Key: key, Cost: n}, until: l.Group.Now() + patience(ctx, l.Group.Budget)}
}

// ForeseeEach returns what would be decided over one token of a key by each of its limits alone.
// The policies have one limit each, in their order: those that the request carries, or the key's own
// if limit is nil. Redis is asked unless this process decides over
// the only one. If it does not answer, ForeseeEach returns an error. Tokens that this process knows
// to be refused are refused by the limit that refused last, whatever Redis says by now.
func (l *Limiter) ForeseeEach(ctx context.Context, key string, limit *Resolved, alone []*local.Policy) ([]Told, error) {
	p := l.partToForesee(ctx, key, 1)
	p.limit = l.limitOf(key, limit)
	p.bucket, p.now = l.bucketToPeek(key, p.limit), l.Group.Now()
	s, known := p.look()
	if len(alone) == 1 && s < redis {
		return []Told{p.foreseen(known)}, nil
	}
	p.limit = nil // alone has it
	runs := make([]*dryRun, len(alone))
	for i := range runs {
		runs[i] = p.bucket.dryRun(1, func(c local.Call) local.Call {
			if limit != nil {
				c = c.By(limit.Policy())
			}
			return c.Only(i)
		}, p.until)
	}
	all := make([]Told, len(runs))
	for i, j := range runs {
		c, r := j.wait(ctx)
		if r.Err != nil {
			return nil, r.Err
		}
		if all[i] = p.foreseenByRedis(alone[i], c, r.Reply); len(all) > 1 {
			all[i].Limit = uint8(i + 1)
		}
	}
	if which, _ := p.bucket.Hot().LastReport(true); s == denial && 0 < which && int(which) <= len(all) {
		t := &all[which-1]
		known.Policy = t.Policy
		t.Outcome = l.asTried(known)
	}
	return all, nil
}

// bucketToPeek returns the bucket of a key, with the limit that the request carries, or its own if
// that is nil. If the process has none, and does not need one to know the limit, it returns one
// that is not kept: a look at many keys must not evict others.
func (l *Limiter) bucketToPeek(key string, limit *Resolved) *Bucket {
	g, id, s := l.Group, l.ID(key), l.settings.Load()
	if s.KeyLimit == nil && !g.Closed.Load() {
		if b, ok := g.Cache.Find(id); ok {
			b.give(g.Now(), key, limit)
			return b
		}
		b := new(Bucket)
		b.Init(s.Initial, id.Key)
		b.give(g.Now(), key, limit)
		return b
	}
	b := g.find(g.Now(), id)
	b.give(g.Now(), key, limit)
	return b
}

// foresee tells how the part would be decided. It reports false if its bucket was evicted, or its
// policy has changed.
func (p *Part) foresee(ctx context.Context) (t Told, ok bool) {
	b := p.bucket
	switch by := b.Policy(); {
	case by.Rule == local.Unresolved:
		return t, false
	case by.Rule != local.ByLimit || p.Cost > by.Cap:
		return p.foreseen(b.byRule(p.now)), true
	case p.limit != nil && p.Cost > p.limit.Most():
		return p.foreseen(b.refuseForGood(p.now, local.ExceedsBurst)), true
	}
	s, o := p.look()
	if s == redis {
		run := b.dryRun(p.Cost, nil, p.until)
		c, r := run.wait(ctx)
		p.goByOwn()
		if p.now = p.Limiter.Group.Now(); run.told {
			s, o = p.look()
		}
		if r.Err == nil && s == redis {
			t = p.foreseenByRedis(c.Policy, c, r.Reply)
			t.Outcome = p.byOwnLimit(ctx, t.Outcome)
			return t, true
		}
		if s == redis {
			if ctx.Err() != nil {
				return p.foreseen(canceled(ctx, b.Policy())), true
			}
			o, _ = failMode.look(p)
		}
	}
	return p.foreseen(p.byOwnLimit(ctx, o)), o.Reason != local.Outdated
}

// foreseen tells of an outcome that was foreseen. In shadow mode a refusal admits.
func (p *Part) foreseen(o local.Outcome) Told {
	return Told{Outcome: p.Limiter.asTried(o), Key: p.Key, Cost: p.Cost, Bucket: p.bucket, Now: p.now, Carried: p.limit}
}

// foreseenByRedis returns what Redis' answer to a dry run means, together with what this process
// has of the key. by is the policy of the outcome.
func (p *Part) foreseenByRedis(by *local.Policy, c local.Call, r lua.Reply) Told {
	l, b, n := p.Limiter, p.bucket, p.Cost
	p.now = l.Group.Now()
	o, share := b.Foreseen(p.now, n, c, r), l.share(b.ID(), by)
	if o.Policy = by; !o.Allowed() && (b.Hot().Holds(p.now, n) || share.holds(p.now, n)) {
		o.Reason, o.Retry = local.Granted, 0
	}
	t := p.foreseen(share.tell(o, p.now, n))
	t.Bucket, t.Dry, t.Which, t.Clear = nil, true, uint8(r.Which), p.now+time.Duration(r.Reset)*time.Microsecond
	return t
}

// Known returns what this process knows of one token of a key, without a call. It reports false if
// it knows nothing. limit is what the request carries, or nil.
func (l *Limiter) Known(key string, limit *Resolved) (t Told, ok bool) {
	g := l.Group
	b, ok := g.Cache.Find(l.ID(key))
	if !ok {
		return t, false
	}
	now := g.Now()
	if _, ok = b.LastUse(now); !ok {
		return t, false
	}
	limit = l.limitOf(key, limit)
	b.give(now, key, limit)
	o := b.byRule(now)
	if o.Policy.Rule == local.ByLimit {
		o = b.known(now)
	}
	return Told{Outcome: o, Key: key, Cost: 1, Bucket: b, Now: now, Carried: limit}, true
}

// known returns the outcome of one token by what this process knows of b.
func (b *Bucket) known(now time.Duration) local.Outcome {
	p, share := b.Policy(), b.share()
	held, level := b.Peek(now)
	left, need := min(held+max(level, 0), p.Most()), 1+b.Hot().Reserved()
	told, refused := b.Hot().Refuse(now, need)
	_, clear := b.Hot().LastReport(refused)
	o := local.Decided(p, local.Granted, local.Local, left, 0)
	if left < need && !share.holds(now, 1) {
		o.Reason = local.Limited
		switch missing := need - held - level; {
		case refused:
			o.Retry = told.Retry
		case !p.Call.Algorithm.Has(lua.Window): // by the slowest of several
			o.Retry = ResetAfter(missing, float64(p.Per)/float64(p.Tokens))
		case clear > now:
			o.Retry = clear - now
		default:
			o.Retry = Owner(p).Retention
		}
		o.Retry = max(o.Retry, time.Microsecond)
	}
	return share.tell(o, now, 1)
}

// PolicyFor returns the policy that decides a key.
func (l *Limiter) PolicyFor(id local.ID, key string) *local.Policy {
	s := l.settings.Load()
	if s.KeyLimit == nil && !l.carries.Load() {
		return s.Initial
	}
	b := l.Group.find(l.Group.Now(), id)
	b.give(l.Group.Now(), key, nil)
	return b.Policy()
}

// Find returns the policy of a key's bucket, if this process keeps one whose limit is known.
func (l *Limiter) Find(key string) (*local.Policy, bool) {
	b, ok := l.Group.Cache.Find(l.ID(key))
	if !ok || b.Policy().Rule == local.Unresolved {
		return nil, false
	}
	return b.Policy(), true
}
