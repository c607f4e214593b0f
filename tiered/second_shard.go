package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// firstRefusal is what the first shard of a part's key answered, while the second is asked.
type firstRefusal struct {
	bucket *bucket // the first shard's; nil while none has refused
	reason Reason
	tier   Tier
	retry  time.Duration
}

// other goes on with the second shard of the part's key when the first has refused. It reports false if there is
// none, or if what is known of it does not help. Then the first's answer stands, except for the time to come back.
func (p *part) trySecondShard() bool {
	l := p.limiter
	if l.shards == nil || p.bucket == nil || p.first.bucket != nil || p.firstOnly {
		return false
	}
	g := l.group
	if p.isSingle() && p.d.Tier != Local { // it has waited, and others may have been refused with it, and borrow too
		p.yield()
		p.now = g.now()
	}
	if outcomeOf(p.d.Reason) == 0 || g.closed.Load() {
		return false
	}
	id := p.bucket.ID()
	_, second := l.shardsOf(id.Key)
	id.Policy = second.number
	b := g.find(p.now, id)
	if !b.Holds(p.now, p.cost) {
		if b.probe(p.now) {
			return false // its share is the first's
		}
		if v, denied := p.denied(b); denied {
			p.d.RetryAfter = sooner(p.d.Reason, p.d.RetryAfter, v.Retry)
			return false
		}
		if p.now >= p.until {
			return false
		}
	}
	p.first = firstRefusal{p.bucket, p.d.Reason, p.d.Tier, p.d.RetryAfter}
	p.setSource(b, local.FromLease)
	p.state = undecided
	return true
}

// outcomeOf is the outcome of a refusal that another shard may turn; 0 of any other.
func outcomeOf(r Reason) local.Outcome {
	switch r {
	case Limited:
		return local.Refused
	case ShareSpent:
		return local.ShareSpent
	case Unavailable:
		return local.Failed
	}
	return 0
}

// sooner is when to come back to the one of two shards that is ready first.
func sooner(r Reason, first, second time.Duration) time.Duration {
	switch {
	case r == Unavailable: // which names no time
		return first
	case first == 0: // never, as long as this process is alone
		return second
	}
	return min(first, second)
}

// retryOf is when a key that is refused at this moment may be admitted again, by either of its shards; 0 if it is not
// refused.
func (l *Limiter) retryOf(now time.Duration, key string) (retry time.Duration) {
	first, second := l.shardsOf(key)
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

// borrowed makes the second shard's answer that of both.
func (p *part) mergeShards() {
	switch {
	case p.d.Allowed:
		p.undoFirstRefusal(p.cost)
	case p.d.Reason == Canceled:
		p.undoFirstRefusal(0)
	case p.d.Reason == Limited:
		p.d.Reason, p.d.Tier = p.first.reason, p.first.tier
		p.d.RetryAfter = sooner(p.first.reason, p.first.retry, p.d.RetryAfter)
	}
}

// takeBack tells the first shard's bucket that it did not refuse the part after all, and what the second admitted of
// it.
func (p *part) undoFirstRefusal(lent int64) {
	b, g := p.first.bucket, p.limiter.group
	n := p.cost
	if p.asksAgain() && p.first.reason == Limited { // that was not counted
		n = 0
	}
	for !b.UndoRefusal(n, lent, outcomeOf(p.first.reason)) { // evicted and forgotten since
		b = g.find(p.now, b.ID())
	}
}

// exceedsShard refuses what costs more than any shard may hold. It is the same for all shards, though some hold a token
// more: else one process would admit a request that another never does.
func (l *Limiter) exceedsShard(b *bucket, key string, n int64, d *Decision) bool {
	if n == 1 { // each has one
		return false
	}
	b.limiter().resolve(b, key)
	p := b.Policy()
	if p.Rule != local.ByLimit || p.Parent == nil || n <= p.Parent.Cap/int64(len(l.shards)) {
		return false
	}
	l.refuseForGood(d, b, key, ExceedsBurst)
	if limits := p.Owner.(*resolvedLimit); len(limits.limits) > 1 {
		d.Which = limits.smallest
	}
	return true
}
