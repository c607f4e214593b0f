package tiered

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Peek is PeekN for one token.
func (l *Limiter) Peek(ctx context.Context, key string) Decision { return l.PeekN(ctx, key, 1) }

// PeekN returns what [Limiter.AllowN] would return now, but takes nothing, so Remaining and ResetAfter are those of before
// the request. Where AllowN would ask Redis, PeekN does so too, with a call that changes nothing there, and blocks for as
// long at most. Otherwise Remaining is as new as this process' lease, or as its knowledge that the key is refused.
// What this process has charged counts, also if Redis has not heard of it yet. If Redis does not answer, PeekN returns what
// the policy's FailMode would decide.
func (l *Limiter) PeekN(ctx context.Context, key string, n int64) (d Decision) {
	if r := l.valid(key, n); r != Granted {
		return l.refusal(key, r)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	if l.foresee(ctx, key, n, &d); l.mode.Load()&modeTraced != 0 {
		l.group.trace.decision(d)
	}
	return d
}

// PeekLocal returns what this process knows of a key, by the last reply of Redis and the refill since. It makes no call, does
// not block, and takes nothing. It reports false if Redis has told this process nothing of the key, or too long ago.
func (l *Limiter) PeekLocal(key string) (d Decision, ok bool) {
	if l.valid(key, 1) != Granted {
		return Decision{}, false
	}
	g, id := l.group, l.id(key)
	b, ok := g.cache.Find(id)
	if !ok {
		return Decision{}, false
	}
	now := g.now()
	if _, ok = b.LastUse(now); !ok {
		return Decision{}, false
	}
	l.resolve(b, key)
	o := b.byRule(now)
	if o.policy.Rule == local.ByLimit {
		o = l.known(now, b)
	}
	o.write(&d, key, b, now)
	return d, true
}

// known returns the outcome of one token of a key by what this process knows of its bucket.
func (l *Limiter) known(now time.Duration, b *bucket) outcome {
	p, hash := b.Policy(), l.group.cache.Hash(b.ID())
	held, level := b.Peek(now)
	left, need := min(held+max(level, 0), p.Cap), 1+b.Reserved()
	v, sure := b.Foresee(now, need)
	refused := sure && v.Outcome == local.Refused
	_, clear := b.LastReport(refused)
	o := outcome{p, how{Granted, Local, false}, left, 0}
	if left < need && (l.mode.Load()&modeStanding == 0 || l.shareLevel(now, hash, p) < 1) {
		o.reason = Limited
		switch missing := need - held - level; {
		case refused:
			o.retry = v.Retry
		case p.Call.Algorithm == lua.TokenBucket:
			o.retry = resetAfter(missing, p.NanosPerToken)
		case p.Call.Algorithm == lua.TokenBuckets: // by the slowest of them
			o.retry = resetAfter(missing, float64(p.Per)/float64(p.Tokens))
		case clear > now:
			o.retry = clear - now
		default:
			o.retry = p.Owner.(*resolvedLimit).retention
		}
		o.retry = max(o.retry, time.Microsecond)
	}
	return l.withShare(o, now, hash, 1)
}

// policyFor returns the policy that decides a key.
func (l *Limiter) policyFor(id local.ID, key string) *local.Policy {
	s := l.settings.Load()
	if s.policy.PerKey == nil && !l.carries.Load() {
		return s.initial
	}
	b := l.group.find(l.group.now(), id)
	l.resolve(b, key)
	return b.Policy()
}
