package tiered

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

// foresee is AllowN. It takes nothing and counts nothing. The steps are those of a request: the
// lease, the standing share, what is known to be refused, Redis, and the fail mode.
func (l *Limiter) foresee(ctx context.Context, key string, n int64, d *Decision) {
	until := l.group.now() + patience(ctx, l.group.options.Budget)
	for range maxTries {
		if l.foreseeOnce(ctx, until, l.bucketToPeek(key), key, n, d) {
			return
		}
	}
	outcome{l.settings.Load().initial, how{Unavailable, None, false}, 0, 0}.write(d, key, n, nil, 0)
}

// bucketToPeek returns the bucket of a key. If the process has none, and does not need one to know the limit, it returns
// one that is not kept: a look at many keys must not evict others.
func (l *Limiter) bucketToPeek(key string) *bucket {
	g, id, s := l.group, l.id(key), l.settings.Load()
	if s.policy.PerKey == nil && !l.carries.Load() && !g.closed.Load() {
		if b, ok := g.cache.Find(id); ok {
			l.resolve(b, key)
			return b
		}
		b := new(bucket)
		b.Init(s.initial, id.Key)
		return b
	}
	b := g.find(g.now(), id)
	l.resolve(b, key)
	b.adoptLast(g.now())
	return b
}

// foreseeOnce is foresee for a bucket. It reports false if that was evicted, or its policy has changed.
func (l *Limiter) foreseeOnce(ctx context.Context, until time.Duration, b *bucket, key string, n int64, d *Decision) bool {
	g := l.group
	now, p, share := g.now(), b.Policy(), b.share()
	var o outcome
	switch {
	case p.Rule == local.Unresolved:
		return false
	case p.Rule != local.ByLimit || n > p.Cap:
		l.asTried(b.byRule(now)).write(d, key, n, b, now)
		return true
	}
	switch v, known := b.Foresee(now, n); {
	case known && v.Outcome == local.Admitted:
		o = outcome{p, how{Granted, Local, false}, v.Left, 0}
	case share.holds(now, n):
		o = outcome{p, how{Granted, Local, false}, b.seenLeft(now), 0}
	case g.closed.Load() || b.unhealthy() != nil:
		return l.foreseeFallback(d, now, b, key, n)
	case known:
		o = outcome{p, how{Limited, Local, false}, v.Left, v.Retry}
	default:
		return l.foreseeRedis(ctx, until, b, key, n, d)
	}
	l.asTried(share.tell(o, now, n)).write(d, key, n, b, now)
	return true
}

// foreseeFallback writes the Decision of the fail mode.
func (l *Limiter) foreseeFallback(d *Decision, now time.Duration, b *bucket, key string, n int64) bool {
	p := b.Policy()
	v := b.ForeseeFallback(now, n, l.group.fleetOf(b), false)
	if v.Outcome == local.Outdated {
		return false
	}
	l.asTried(b.share().tell(byFailMode(p, v), now, n)).write(d, key, n, b, now)
	return true
}

// foreseeRedis writes the Decision that Redis would make.
func (l *Limiter) foreseeRedis(ctx context.Context, until time.Duration, b *bucket, key string, n int64, d *Decision) bool {
	c, r := b.dryRun(n, allLimits, until).wait(ctx)
	if r.Err == nil {
		l.decideDry(d, b, key, c.Policy, n, c, r.Reply)
		return true
	}
	now := l.group.now()
	if ctx.Err() != nil {
		l.asTried(outcome{b.Policy(), how{Canceled, None, expired(ctx)}, 0, 0}).write(d, key, n, b, now)
		return true
	}
	return l.foreseeFallback(d, now, b, key, n)
}

// decideDry writes the Decision that Redis' answer to a dry run means, with what this process has of the key. p is the
// policy by which it is told.
func (l *Limiter) decideDry(d *Decision, b *bucket, key string, p *local.Policy, n int64, c local.Call, r lua.Reply) {
	now := l.group.now()
	v, share := b.Foreseen(now, n, c, r), l.share(b.ID(), p)
	o := outcome{p, how{Granted, Remote, false}, v.Left, 0}
	if v.Outcome == local.Refused && !b.Holds(now, n) && !share.holds(now, n) {
		o.reason, o.retry = Limited, v.Retry
	}
	o = l.asTried(share.tell(o, now, n))
	if o.write(d, key, n, nil, now); p.Call.Algorithm != lua.TokenBucket {
		o.report(d, now, uint8(r.Which), now+time.Duration(r.Reset)*time.Microsecond)
		o.addFullShare(d, now)
	}
}

// dryRun is a [dispatch.Job] that asks Redis what it would answer a request of n tokens.
type dryRun struct {
	bucket *bucket
	n      int64
	limit  int                // the number of the limit that it is about, from 0, or allLimits
	until  time.Duration      // the caller stops waiting then
	call   local.Call         // as it was sent
	reply  chan remote.Result // capacity 1
}

// Errors of dry runs.
var (
	errClosed   = errors.New("tiered: the Group is closed")
	errNotAsked = errors.New("tiered: Redis was not asked")
)

// allLimits is the limit of a dry run by all limits of a key.
const allLimits = -1

// dryRun asks Redis what it would answer a request of n tokens by a limit, and does not wait. The answer counts until a
// time.
func (b *bucket) dryRun(n int64, limit int, until time.Duration) *dryRun {
	g, name := b.limiter().group, b.name()
	j := &dryRun{bucket: b, n: n, limit: limit, until: until, reply: make(chan remote.Result, 1)}
	node := g.dispatch.Node(g.store.Node(name))
	switch {
	case g.closed.Load():
		j.reply <- remote.Result{Err: errClosed}
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
	ctx, cancel := context.WithTimeout(ctx, j.until-j.bucket.limiter().group.now())
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
	c, asks := j.bucket.DryRun(now, j.n, j.bucket.conditions(n, now, name, j.bucket.limiter().group.seq.Load()))
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
