package tiered

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// bucketLimiters returns the Limiters that have a bucket of each key: the shards, or this one.
func (l *Limiter) bucketLimiters() []*Limiter {
	if l.shards != nil {
		return l.shards
	}
	return []*Limiter{l}
}

// bucketPolicies returns the policy of each bucket of a key, given that of one bucket.
func (l *Limiter) bucketPolicies(p *local.Policy) []*local.Policy {
	if l.shards == nil {
		return []*local.Policy{p}
	}
	all := make([]*local.Policy, len(l.shards))
	for i, s := range l.shards {
		all[i] = s.policyOf(s.settings.Load(), p.Owner.(*resolvedLimit).limits[0])
	}
	return all
}

// policyFor returns the policy that decides a key.
func (l *Limiter) policyFor(id local.ID, key string) *local.Policy {
	l, _ = l.shardsOf(id.Key)
	id.Policy = l.number
	s := l.settings.Load()
	if s.policy.PerKey == nil && !l.parent.carries.Load() {
		return s.initial
	}
	b := l.group.find(l.group.now(), id)
	l.resolve(b, key)
	return b.Policy()
}

// Peek is PeekN for one token.
func (l *Limiter) Peek(ctx context.Context, key string) Decision { return l.PeekN(ctx, key, 1) }

// PeekN returns what [Limiter.AllowN] would return now, but takes nothing, so Remaining and ResetAfter are those of before
// the request. Where AllowN would ask Redis, PeekN does so too, with a call that changes nothing there, and blocks for as
// long at most. Otherwise Remaining is as new as this process' lease, or as its knowledge that the key is refused.
// What this process has charged counts, also if Redis has not heard of it yet. If Redis does not answer, PeekN returns what
// the policy's FailMode would decide.
//
// With Shards, PeekN asks Redis for each shard, all at the same time, and Remaining is the sum of the shards. If Redis does
// not answer, it returns what this process knows.
func (l *Limiter) PeekN(ctx context.Context, key string, n int64) (d Decision) {
	if r := l.valid(key, n); r != Granted {
		return l.refusal(key, r)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	if l.shards == nil {
		l.foresee(ctx, key, n, &d)
	} else {
		d = l.peekBuckets(ctx, key, n, l.peekAll)
	}
	l.asTried(&d)
	return d
}

// PeekLocal returns what this process knows of a key, by the last reply of Redis and the refill since. It makes no call, does
// not block, and takes nothing. It reports false if Redis has told this process nothing of the key, or too long ago.
func (l *Limiter) PeekLocal(key string) (d Decision, ok bool) {
	if l.valid(key, 1) != Granted {
		return Decision{}, false
	}
	b, ok := l.group.cache.Find(l.firstID(key))
	if ok {
		_, ok = b.LastUse(l.group.now())
	}
	if !ok {
		return Decision{}, false
	}
	d = l.peekBuckets(context.Background(), key, 1, func(_ context.Context, _ string, all []*local.Policy) []remote.Result {
		return slices.Repeat([]remote.Result{{Err: errNotAsked}}, len(all))
	})
	return d, d.Reason != Unavailable
}

var errNotAsked = errors.New("tiered: Redis was not asked")

// peekBuckets is a peek at all buckets of a key, with what ask finds out about them.
func (l *Limiter) peekBuckets(
	ctx context.Context, key string, n int64, ask func(context.Context, string, []*local.Policy) []remote.Result,
) (d Decision) {
	id := l.id(key)
	p := l.policyFor(id, key)
	switch p.Rule {
	case local.Unlimited:
		l.unlimited(&d, key)
		return d
	case local.Blocked:
		l.refuseBlocked(&d, key)
		return d
	}
	policies := l.bucketPolicies(p)
	results := ask(ctx, id.Key, policies)
	parent := p
	if p.Parent != nil {
		parent = p.Parent
	}
	if slices.ContainsFunc(results, func(r remote.Result) bool { return r.Err != nil }) && ctx.Err() != nil {
		l.decideBy(&d, parent, key, answer{Canceled, None, 0, 0})
		d.Expired = expired(ctx)
		return d
	}
	first, second := l.shardsOf(id.Key)
	tier, now, sum := Remote, l.group.now(), int64(0)
	var least *peeked // of the one or two buckets that Allow would ask
	retry := time.Duration(math.MaxInt64)
	grants := false
	for i, s := range l.bucketLimiters() {
		if results[i].Err != nil {
			tier = Local
		}
		v := s.peeked(now, id.Key, n, policies[i], results[i])
		if v == nil {
			continue
		}
		sum += v.left
		if s != first && s != second {
			continue
		}
		if least == nil || v.left < least.left {
			least = v
		}
		retry, grants = min(retry, v.retry), grants || v.grants
	}
	var full time.Duration // when the standing share is
	if shares := usableShares(p); shares != nil && least != nil {
		hash := l.group.cache.Hash(id)
		level := l.group.shares.Level(now, hash, shares)
		sum, grants = sum+level, grants || level >= n
		retry = max(min(retry, l.group.shares.Wait(now, hash, shares, n)), time.Microsecond)
		full = l.group.shares.Full(now, hash, shares)
	}
	switch {
	case least == nil:
		l.decideBy(&d, parent, key, answer{Unavailable, None, 0, 0})
		return d
	case n > p.Cap:
		l.decideBy(&d, p, key, answer{ExceedsBurst, tier, least.left, 0})
	case grants:
		l.decideBy(&d, parent, key, answer{Granted, tier, min(sum, parent.Cap), 0})
	default:
		l.decideBy(&d, parent, key, answer{Limited, tier, min(sum, parent.Cap), retry})
	}
	if p.Call.Algorithm != lua.TokenBucket {
		d.addReport(p, now, least.which, least.resetAt)
		d.ResetAfter = max(d.ResetAfter, full)
	}
	return d
}

// peeked is what is known of one bucket of a key.
type peeked struct {
	left    int64         // tokens
	grants  bool          // these are as many as were asked for, besides those that are reserved for who waits
	retry   time.Duration // time until there are as many, if there are fewer
	which   uint8         // number of the limit that has the fewest, from 1; 0 if unknown
	resetAt time.Duration // when nothing counts any more, since the Group's base; 0 if unknown
}

// peeked returns what is known of a bucket: what Redis says plus what is held here. If Redis does not answer, it
// returns what this process knows, or nil if that is nothing.
func (l *Limiter) peeked(now time.Duration, key string, n int64, p *local.Policy, r remote.Result) *peeked {
	var held, level int64
	v, clear, refused := &peeked{}, p.Owner.(*resolvedLimit).retention, false // refused: and it is known when that ends
	b, cached := l.group.cache.Find(local.ID{Policy: l.number, Key: key})
	if cached {
		held, level = b.Peek(now)
		n += b.Reserved()
	}
	switch {
	case r.Err == nil:
		level, v.which = r.Reply.Level, uint8(r.Reply.Which)
		if cached {
			level -= b.Charged() // Redis hears of it within 50 ms
		}
		if r.Reply.Reset > 0 {
			clear = time.Duration(r.Reply.Reset) * time.Microsecond
			v.resetAt = now + clear
		}
	case cached:
		known, ok := b.Foresee(now, n)
		refused = ok && known.Outcome == local.Refused
		v.which, v.resetAt = b.LastReport(refused)
		if v.retry = known.Retry; v.resetAt > now {
			clear = v.resetAt - now
		}
	default:
		return nil
	}
	v.left = min(held+max(level, 0), p.Cap)
	v.grants = v.left >= n
	switch {
	case refused:
	case p.Call.Algorithm == lua.TokenBucket:
		v.retry = resetAfter(n-held-level, p.NanosPerToken)
	case p.Call.Algorithm == lua.TokenBuckets: // by the slowest of them
		v.retry = resetAfter(n-held-level, float64(p.Per)/float64(p.Tokens))
	default:
		v.retry = clear
	}
	v.retry = max(v.retry, time.Microsecond)
	return v
}
