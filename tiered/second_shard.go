package tiered

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// firstRefusal is the answer of the first shard of a part's key, while the second is asked.
type firstRefusal struct {
	bucket *bucket // the first shard's; nil while none has refused
	reason Reason
	tier   Tier
	retry  time.Duration
}

// trySecondShard continues with the second shard of the part's key after the first has refused. It reports false if
// there is none, or if it is known not to help. Then the first shard's answer counts, with the sooner of both retry
// times.
func (p *part) trySecondShard() bool {
	l := p.limiter
	if l.shards == nil || p.bucket == nil || p.first.bucket != nil || p.firstOnly {
		return false
	}
	g := l.group
	if p.isSingle() && p.d.Tier != Local { // other requests may have been refused at the same instant
		p.yield()
		p.now = g.now()
	}
	if outcomeOf(p.d.Reason) == 0 || g.closed.Load() {
		return false
	}
	id := p.bucket.ID()
	_, second := l.shardsOf(id.Key)
	id.Policy = second.number
	b := p.find(id)
	if !b.Holds(p.now, p.cost) {
		if b.probe(p.now) {
			return false // both shards use one share
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

// outcomeOf returns the outcome of a refusal that the second shard may overrule. It returns 0 for any other.
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

// sooner returns the retry time of the shard that is ready first.
func sooner(r Reason, first, second time.Duration) time.Duration {
	switch {
	case r == Unavailable: // it has no retry time
		return first
	case first == 0: // never, while Redis does not answer
		return second
	}
	return min(first, second)
}

// retryOf returns the time until a key that is refused now may be admitted again, by either of its shards. It returns 0
// if the key is not refused.
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

// mergeShards makes one answer of those of both shards.
func (p *part) mergeShards() {
	switch {
	case p.d.Allowed:
		p.undoFirstRefusal(p.cost)
	case p.d.Reason == Canceled, p.d.Reason == ExceedsBurst: // it counts as that
		p.undoFirstRefusal(0)
	case p.d.Reason == Limited:
		p.d.Reason, p.d.Tier = p.first.reason, p.first.tier
		p.d.RetryAfter = sooner(p.first.reason, p.first.retry, p.d.RetryAfter)
	}
}

// undoFirstRefusal undoes the count of the first shard's refusal. lent is what the second shard admitted instead.
func (p *part) undoFirstRefusal(lent int64) {
	b, g := p.first.bucket, p.limiter.group
	n := p.cost
	if p.asksAgain() && p.first.reason == Limited { // such a refusal was not counted
		n = 0
	}
	for !b.UndoRefusal(n, lent, outcomeOf(p.first.reason)) { // the bucket was evicted meanwhile
		b = g.find(p.now, b.ID())
	}
}

// exceedsShard refuses a cost above the burst of a shard. The limit is the same for all shards, although the first ones
// hold one token more. Otherwise one process would admit a request that another one never does.
func (l *Limiter) exceedsShard(b *bucket, key string, n int64, d *Decision) bool {
	if n == 1 { // each shard holds one
		return false
	}
	b.limiter().resolve(b, key)
	p := b.Policy()
	if p.Rule != local.ByLimit || p.Parent == nil || n <= p.Parent.Cap/int64(len(l.shards)) {
		return false
	}
	l.refuseForGood(d, b, key, ExceedsBurst)
	if limits := p.Owner.(*resolvedLimit); len(limits.limits) > 1 {
		d.LimitNumber = limits.smallest
	}
	return true
}
