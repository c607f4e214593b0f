package engine

import (
	"context"
	"errors"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// Charge takes n tokens from key, whether it has them or not: its standing share pays first, then
// its lease, then Redis. limit is what the request carries for the key, or nil.
func (l *Limiter) Charge(key string, n int64, limit *Resolved) {
	id, g := l.ID(key), l.Group
	if limit == nil { // else nothing is shared
		p := l.PolicyFor(id, key)
		if p.Rule != local.ByLimit { // nothing is counted
			return
		}
		n -= l.share(id, p).charge(g.Now(), n)
	}
	if n == 0 {
		return
	}
	now := g.Now()
	b := g.find(now, id)
	b.give(now, key, limit)
	if b.Policy().Rule == local.ByLimit {
		l.charge(now, b, key, n)
	}
}

// RefundShare gives up to n tokens back to the standing share of a key, and returns how many fit.
func (l *Limiter) RefundShare(key string, n int64) int64 {
	if l.mode.Load()&ModeStanding == 0 {
		return 0
	}
	id := l.ID(key)
	return l.share(id, l.PolicyFor(id, key)).refund(l.Group.Now(), n)
}

// Credit gives n tokens to key, or fills it with n = local.Fill, and waits until Redis has done it.
// If that is not known, done is false, and cause says why, if that is known.
func (l *Limiter) Credit(ctx context.Context, key string, n int64) (done bool, cause error) {
	if ctx == nil {
		ctx = context.Background()
	}
	id := l.ID(key)
	p := l.PolicyFor(id, key)
	if p.Rule != local.ByLimit { // there is no bucket
		return true, nil
	}
	// A credit needs a deadline, and so the node's clock. A dry run learns it, and notices a Redis
	// that is down. It asks as a process that does not know the key, because a process whose calls
	// have just failed asks nothing for a while.
	b := new(Bucket)
	b.Init(p, id.Key)
	if _, r := b.dryRun(1, nil, l.Group.Now()+patience(ctx, l.Group.Budget)).wait(ctx); r.Err != nil {
		return false, causeOf(ctx, r.Err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience(ctx, l.Group.Budget))
	defer cancel()
	for {
		switch l.give(ctx, id, key, n) {
		case local.Granted:
			return true, nil
		case local.Outdated: // the bucket was evicted since it was looked up
			continue
		case local.Unavailable:
			return false, causeOf(ctx, nil)
		default:
			return false, causeOf(ctx, ctx.Err())
		}
	}
}

// give makes a credit, and waits for the answer. It returns 0 if ctx ends first.
func (l *Limiter) give(ctx context.Context, id local.ID, key string, n int64) local.Reason {
	g := l.Group
	now := g.Now()
	b := g.Cache.Get(now, id)
	l.resolve(b, key)
	if b.Policy().Rule != local.ByLimit { // it has lost its limit meanwhile
		return local.Granted
	}
	w := local.NewWaiter()
	o, effect := b.Credit(w, n)
	b.apply(now, effect)
	if o.Reason != local.Waiting {
		return o.Reason
	}
	select {
	case o = <-w.C:
		return o.Reason
	case <-ctx.Done(): // nobody reads the answer in w any more
		return 0
	}
}

// causeOf returns err, or that ctx was canceled.
func causeOf(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Canceled
	}
	return err
}
