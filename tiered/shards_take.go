package tiered

import (
	"context"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// takeShard is take of a Limiter with shards.
func (l *Limiter) takeShard(ctx context.Context, key string, n int64, t *taking, d *Decision) {
	if r := valid(key, n); r != Granted {
		l.invalid(d, key, r)
		return
	}
	g := l.group
	now := g.now()
	b := g.find(now, l.home(key))
	if l.tooDear(b, key, n, d) {
		t.nothing()
		return
	}
	if t != nil {
		t.from(b, local.FromLease)
	}
	if left, ok, renew := b.Take(now, n); ok {
		if renew {
			b.apply(now, b.Renew(now))
		}
		l.decide(d, now, b, key, Granted, Local, left, 0)
		return
	}
	b.limiter().ask(ctx, now, b, key, n, t, d)
	if !d.Allowed {
		l.borrow(ctx, now, b, key, n, t, d)
	}
}

// tooDear refuses what costs more than any shard may hold. It is the same for all shards, though some hold a token more: else a
// request would be admitted by one process and never by another.
func (l *Limiter) tooDear(b *bucket, key string, n int64, d *Decision) bool {
	if n == 1 { // each has one
		return false
	}
	b.limiter().resolve(b, key)
	p := b.Policy()
	if p.Rule != local.ByLimit || p.Whole == nil || n <= p.Whole.Cap/int64(len(l.shards)) {
		return false
	}
	l.standing(d, b, key, ExceedsBurst)
	if limits := p.Owner.(*plan); len(limits.limits) > 1 {
		d.Which = limits.smallest
	}
	return true
}
