package tiered

import (
	"context"
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// A policy with Shards has a Limiter for each shard, with a part of every limit and with buckets of their own: to them, a
// bucket is one like any other. A process uses two of a key's: its first, and where that refuses, its second. Whichever are
// chosen, each keeps the bound of its part, and the parts sum to the limit.

// maxShards is the most that one key may be split into: with more, each would have too little of any limit that people write.
const maxShards = 64

// validateShards reports what cannot be split.
func (p Policy) validateShards(bad func(field string, value any, rule string)) {
	if p.Shards < 0 || p.Shards > maxShards {
		bad("Shards", p.Shards, fmt.Sprintf("must be 2 to %d, or 0 or 1 for one bucket", maxShards))
		return
	}
	if p.Shards < 2 || p.Limit.rule() != local.ByLimit {
		return
	}
	for i, l := range p.limits() {
		field := "Limit"
		if i > 0 {
			field = fmt.Sprintf("Also[%d]", i-1)
		}
		if burst := l.burst(); burst > 0 && burst < int64(p.Shards) {
			bad("Shards", p.Shards, fmt.Sprintf("must be at most the burst of %s, %d: a request takes all its tokens from one shard", field, burst))
		}
		if most := (maxPer / time.Duration(p.Shards)).Truncate(time.Microsecond); p.Algorithm == TokenBucket && l.Per > most && l.Per <= maxPer {
			bad(field+".Per", l.Per, fmt.Sprintf("must be at most %v with %d shards, each of which takes as many times as long for its tokens", most, p.Shards))
		}
	}
}

// part is what shard number i of the policy's k has of every limit. All of them sum to the limit, exactly: bursts, and what
// windows hold, are divided with what remains of the division to the first shards; a rate is the same tokens in k times the time.
func (p Policy) part(i, k int) Policy {
	split := func(l Limit) Limit {
		if l.rule() != local.ByLimit {
			return l
		}
		burst := l.burst() / int64(k)
		if int64(i) < l.burst()%int64(k) {
			burst++
		}
		if p.Algorithm != TokenBucket {
			l.Tokens, l.Burst = burst, 0
			return l
		}
		l.Per, l.Burst = l.Per*time.Duration(k), burst
		return l
	}
	p.Limit = split(p.Limit)
	also := p.Also
	p.Also = nil
	for _, l := range also {
		p.Also = append(p.Also, split(l))
	}
	return p
}

// places are the shards of a key that this process uses: by hash, so that the processes are spread over them evenly, and the
// same as long as the process lives.
func (l *Limiter) places(key string) (first, second *Limiter) {
	h, k := hashOf(l.group.place, key), uint64(len(l.shards))
	i := h >> 32 * k >> 32
	j := i + 1 + h&(1<<32-1)*(k-1)>>32
	if j >= k {
		j -= k
	}
	return l.shards[i], l.shards[j]
}

// hashOf is a hash that is the same in every process: FNV-1a from a seed on, and the last step of SplitMix64 (Steele, Lea,
// Flood 2014) to spread it over all bits.
func hashOf(seed uint64, key string) uint64 {
	h := seed
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 0x100000001b3
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// home names the bucket of a key that this process asks first.
func (l *Limiter) home(key string) local.ID {
	id := l.id(key)
	if l.shards != nil {
		first, _ := l.places(id.Key)
		id.Policy = first.number
	}
	return id
}

// borrows reports a bucket that is the second shard of its key in this process: whatever it refuses, the first did before.
func (b *bucket) borrows() bool {
	l := b.limiter()
	if l.whole == l {
		return false
	}
	first, _ := l.whole.places(b.key())
	return l != first
}

// counted is what counts of a bucket's figures: no request is refused twice.
func (b *bucket) counted(s local.Stats) local.Stats {
	if b.borrows() {
		s.Refused = 0
	}
	return s
}

// takeShard is take of a Limiter with shards.
func (l *Limiter) takeShard(ctx context.Context, key string, n int64, t *taking, d *Decision) {
	if r := valid(key, n); r != Granted {
		l.decideBy(d, l.terms.Load().fresh, key, r, None, 0, 0)
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
	l.decideBy(d, p, key, ExceedsBurst, None, 0, 0)
	if limits := p.Owner.(*plan); len(limits.limits) > 1 {
		d.Which = limits.smallest
	}
	return true
}

// meet learns of all nodes, if there are shards: every process that shares the limit is to be counted at the nodes of all shards
// of a key, though it uses but two of them.
func (g *Group) meet() {
	if !g.sharded.Load() {
		return
	}
	for _, id := range g.store.Nodes() {
		g.node(id)
	}
}

// fleetOf is how many of fleet processes have a shard as their first one, on average and rounded up. A shard throws that part
// of its refill away for each of them when nobody can reach it; see local.debt.
func (l *Limiter) fleetOf(fleet int64) int64 {
	k := int64(len(l.whole.shards))
	if k == 0 {
		return fleet
	}
	return (fleet + k - 1) / k
}

// retryOf is when a key that is refused at this moment may be admitted again, by either of its shards; 0 if it is not refused.
func (l *Limiter) retryOf(now time.Duration, key string) (retry time.Duration) {
	first, second := l.places(key)
	for _, s := range []*Limiter{first, second} {
		b, ok := l.group.cache.Find(local.ID{Policy: s.number, Key: key})
		if !ok {
			return 0
		}
		wait, denied := b.Denied(now)
		if !denied {
			return 0
		}
		if retry == 0 || wait < retry {
			retry = wait
		}
	}
	return retry
}
