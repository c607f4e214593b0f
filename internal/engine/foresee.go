package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Foresee is Take, but takes nothing and counts nothing: it only looks at the sources. Redis is asked what it would say. limit is
// what the request carries, or nil.
func (l *Limiter) Foresee(ctx context.Context, key string, n int64, limit *Resolved) Told {
	p := l.partToForesee(ctx, key, n)
	for range maxTries {
		if p.limit = limit; limit == nil && l.carries.Load() {
			p.limit = l.own(key)
		}
		p.bucket, p.now = l.bucketToPeek(key, p.limit), l.Group.Now()
		if t, ok := p.foresee(ctx); ok {
			return t
		}
	}
	return Told{Outcome: Outcome{l.settings.Load().Initial, How{Unavailable, None, false}, 0, 0}, Key: key, Cost: n}
}

// partToForesee returns a part that is only looked at.
func (l *Limiter) partToForesee(ctx context.Context, key string, n int64) Part {
	return Part{Taking: Taking{Limiter: l, Key: key, Cost: n}, until: l.Group.Now() + patience(ctx, l.Group.Budget)}
}

// ForeseeEach returns what Redis would decide over one token of a key by each of its limits alone. The policies are those that has
// one limit each, in their order. If Redis does not answer, it returns an error.
func (l *Limiter) ForeseeEach(ctx context.Context, key string, alone []*local.Policy) ([]Told, error) {
	p := l.partToForesee(ctx, key, 1)
	p.bucket = l.bucketToPeek(key, nil)
	runs := make([]*dryRun, len(alone))
	for i := range runs {
		runs[i] = p.bucket.dryRun(1, i, p.until)
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
	return all, nil
}

// bucketToPeek returns the bucket of a key, with the limit that the request carries, or its own if that is nil. If the process has none, and does not need one to know the limit, it returns
// one that is not kept: a look at many keys must not evict others.
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

// foresee tells how the part would be decided. It reports false if its bucket was evicted, or its policy has changed.
func (p *Part) foresee(ctx context.Context) (t Told, ok bool) {
	b := p.bucket
	switch by := b.Policy(); {
	case by.Rule == local.Unresolved:
		return t, false
	case by.Rule != local.ByLimit || p.Cost > by.Cap:
		return p.foreseen(b.byRule(p.now)), true
	case p.limit != nil && p.Cost > p.limit.Limits[0].Most():
		return p.foreseen(b.refuseForGood(p.now, ExceedsBurst)), true
	}
	s, o := p.look()
	if s == redis {
		c, r := b.dryRun(p.Cost, allLimits, p.until).wait(ctx)
		if r.Err == nil {
			return p.foreseenByRedis(c.Policy, c, r.Reply), true
		}
		p.now = p.Limiter.Group.Now()
		if ctx.Err() != nil {
			return p.foreseen(Outcome{b.Policy(), How{Canceled, None, expired(ctx)}, 0, 0}), true
		}
		o, _ = failMode.look(p)
	}
	return p.foreseen(o), o.Reason != Unknown
}

// foreseen tells of an outcome that was foreseen. In shadow mode a refusal admits.
func (p *Part) foreseen(o Outcome) Told {
	return Told{Outcome: p.Limiter.asTried(o), Key: p.Key, Cost: p.Cost, Bucket: p.bucket, Now: p.now, Carried: p.limit}
}

// foreseenByRedis tells what Redis' answer to a dry run means, with what this process has of the key. by is the policy by which it
// is told.
func (p *Part) foreseenByRedis(by *local.Policy, c local.Call, r lua.Reply) Told {
	l, b, n := p.Limiter, p.bucket, p.Cost
	p.now = l.Group.Now()
	v, share := b.Foreseen(p.now, n, c, r), l.share(b.ID(), by)
	o := Outcome{by, How{Granted, Remote, false}, v.Left, 0}
	if v.Outcome == local.Refused && !b.Holds(p.now, n) && !share.holds(p.now, n) {
		o.Reason, o.Retry = Limited, v.Retry
	}
	t := p.foreseen(share.tell(o, p.now, n))
	t.Bucket, t.Dry, t.Which, t.Clear = nil, true, uint8(r.Which), p.now+time.Duration(r.Reset)*time.Microsecond
	return t
}

// Known returns what this process knows of one token of a key, without a call. It reports false if it knows nothing. limit is what the
// request carries, or nil.
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
	if limit == nil && l.carries.Load() {
		limit = l.own(key)
	}
	b.give(now, key, limit)
	o := b.byRule(now)
	if o.Policy.Rule == local.ByLimit {
		o = b.known(now)
	}
	return Told{Outcome: o, Key: key, Cost: 1, Bucket: b, Now: now, Carried: limit}, true
}

// known returns the outcome of one token by what this process knows of b.
func (b *Bucket) known(now time.Duration) Outcome {
	p, share := b.Policy(), b.share()
	held, level := b.Peek(now)
	left, need := min(held+max(level, 0), p.Cap), 1+b.Reserved()
	v, refused := b.Refuse(now, need)
	_, clear := b.LastReport(refused)
	o := Outcome{p, How{Granted, Local, false}, left, 0}
	if left < need && !share.holds(now, 1) {
		o.Reason = Limited
		switch missing := need - held - level; {
		case refused:
			o.Retry = v.Retry
		case p.Call.Algorithm == lua.TokenBucket:
			o.Retry = ResetAfter(missing, p.NanosPerToken)
		case p.Call.Algorithm == lua.TokenBuckets: // by the slowest of them
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

// dryRun is a [dispatch.Job] that asks Redis what it would answer a request of n tokens.
type dryRun struct {
	bucket *Bucket
	n      int64
	limit  int                // the number of the limit that it is about, from 0, or allLimits
	until  time.Duration      // the caller stops waiting then
	call   local.Call         // as it was sent
	reply  chan remote.Result // capacity 1
}

var errNotAsked = errors.New("tiered: Redis was not asked")

// allLimits is the limit of a dry run by all limits of a key.
const allLimits = -1

// dryRun asks Redis what it would answer a request of n tokens by a limit, and does not wait. The answer counts until a
// time.
func (b *Bucket) dryRun(n int64, limit int, until time.Duration) *dryRun {
	g, name := b.Limiter().Group, b.name()
	j := &dryRun{bucket: b, n: n, limit: limit, until: until, reply: make(chan remote.Result, 1)}
	node := g.Dispatch.Node(g.Store.Node(name))
	switch {
	case g.Closed.Load():
		j.reply <- remote.Result{Err: ErrClosed}
	case node.State() != failover.Closed: // it cannot be a probe: it writes nothing
		j.reply <- remote.Result{Err: node.WhyOpen()}
	default:
		node.Push(dispatch.Pending{Job: j, Bucket: name})
	}
	return j
}

// wait returns the call as it was sent, and Redis' answer or an error. A call that came too late is made again, because the
// node's clock is known better now.
func (j *dryRun) wait(ctx context.Context) (local.Call, remote.Result) {
	c, r := j.answer(ctx)
	if r.Err == nil && r.Reply.Code == lua.Late {
		c, r = j.bucket.dryRun(j.n, j.limit, j.until).answer(ctx)
	}
	if r.Err == nil && r.Reply.Code > lua.Denied {
		r.Err = errNotAsked
	}
	return c, r
}

func (j *dryRun) answer(ctx context.Context) (local.Call, remote.Result) {
	ctx, cancel := context.WithTimeout(ctx, j.until-j.bucket.Limiter().Group.Now())
	defer cancel()
	select {
	case r := <-j.reply:
		return j.call, r
	case <-ctx.Done():
		return local.Call{}, remote.Result{Err: ctx.Err()}
	}
}

// Compose implements [dispatch.Job].
func (j *dryRun) Compose(n *dispatch.Node, now time.Duration, name string) (lua.Call, bool) {
	if now >= j.until {
		return lua.Call{}, false
	}
	c, asks := j.bucket.DryRun(now, j.n, j.bucket.conditions(n, now, name, j.bucket.Limiter().Group.seq.Load()))
	if !asks {
		j.reply <- remote.Result{Err: errNotAsked}
		return lua.Call{}, false
	}
	if j.limit != allLimits {
		c = c.Only(j.limit)
	}
	j.call = c
	return c.Call, true
}

// Abandon implements [dispatch.Job].
func (j *dryRun) Abandon(n *dispatch.Node, _ time.Duration) {
	j.reply <- remote.Result{Err: n.WhyOpen()}
}

// Finish implements [dispatch.Job].
func (j *dryRun) Finish(_ *dispatch.Node, _ time.Duration, _ *lua.Call, _ time.Duration, r remote.Result) {
	j.reply <- r
}
