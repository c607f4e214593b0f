package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// borrow asks the second shard for what the first, b, has refused a request that began then, within the same Budget.
func (l *Limiter) borrow(ctx context.Context, began time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	legs := [1]leg{{taking: taking{limiter: l, key: key, cost: n, bucket: b}, now: began, until: began + l.group.options.Budget}}
	s := &legs[0]
	s.d = *d
	if t != nil {
		s.waits = t.waits
	}
	if d.Tier != Local { // it waited
		l.group.settle(uint64(s.until)) // others may have been refused with it, and borrow too
		s.now = l.group.now()
	}
	if s.other() {
		s.fromPot()
		if s.state == undecided {
			askRedis(ctx, legs[:])
		}
		end(legs[:])
	}
	*d = s.d
	if t != nil && s.state == taken {
		t.bucket, t.source, t.gen, t.era, t.stamp = s.bucket, s.source, s.gen, s.era, s.stamp
	}
}

// firstRefusal is what the first shard of a leg's key answered, while the second is asked.
type firstRefusal struct {
	bucket *bucket // the first shard's; nil while none has refused
	reason Reason
	tier   Tier
	retry  time.Duration
}

// other goes on with the second shard of the leg's key, where the first has refused. It reports false when there is none, or
// when what is known of it does not help; then the first's answer stands, but for the time to come back.
func (t *leg) other() bool {
	l := t.limiter
	if l.shards == nil || t.bucket == nil || t.first.bucket != nil || t.last {
		return false
	}
	g := l.group
	if outcomeOf(t.d.Reason) == 0 || g.closed.Load() {
		return false
	}
	id := t.bucket.ID()
	_, second := l.places(id.Key)
	id.Policy = second.number
	b := g.find(t.now, id)
	if !b.Holds(t.now, t.cost) {
		if n := b.whereabouts(); n != nil && n.guard.State() != failover.Closed {
			if n.guard.ReadyAt(t.now) {
				b.apply(t.now, b.Probe())
			}
			return false // its share is the first's
		}
		if v, ok := t.known(t.now, b, t.cost); ok {
			t.refused(b, t.cost)
			t.d.RetryAfter = sooner(t.d.Reason, t.d.RetryAfter, v.Retry)
			return false
		}
		if t.until > 0 && t.now >= t.until {
			return false
		}
	}
	t.first = firstRefusal{t.bucket, t.d.Reason, t.d.Tier, t.d.RetryAfter}
	t.from(b, local.FromLease)
	t.state = undecided
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

// borrowed makes the second shard's answer that of both.
func (t *leg) borrowed() {
	switch {
	case t.d.Allowed:
		t.takeBack(t.cost)
	case t.d.Reason == Canceled:
		t.takeBack(0)
	case t.d.Reason == Limited:
		t.d.Reason, t.d.Tier = t.first.reason, t.first.tier
		t.d.RetryAfter = sooner(t.first.reason, t.first.retry, t.d.RetryAfter)
	}
}

// takeBack tells the first shard's bucket that it did not refuse the leg after all, and what the second admitted of it.
func (t *leg) takeBack(lent int64) {
	b, g := t.first.bucket, t.limiter.group
	n := t.cost
	if t.asksAgain() && t.first.reason == Limited { // that was not counted
		n = 0
	}
	for !b.TakeBack(n, lent, outcomeOf(t.first.reason)) { // evicted and forgotten since
		b = g.find(t.now, b.ID())
	}
}

// unanswered leaves the leg to the fail mode, or to the first shard's answer if it is the second that does not answer.
func (t *leg) unanswered() {
	if t.first.bucket == nil {
		t.state = alone
		return
	}
	t.decided() // d is still the first's
}
