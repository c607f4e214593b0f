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
	l.foresee(ctx, key, n, &d)
	l.asTried(&d)
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
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		l.unlimited(&d, key)
	case local.Blocked:
		l.refuseBlocked(&d, key)
	default:
		l.known(&d, now, b, p, key)
	}
	return d, true
}

// known writes the Decision on one token of a key by what this process knows of its bucket.
func (l *Limiter) known(d *Decision, now time.Duration, b *bucket, p *local.Policy, key string) {
	held, level := b.Peek(now)
	left, need := min(held+max(level, 0), p.Cap), 1+b.Reserved()
	v, sure := b.Foresee(now, need)
	refused := sure && v.Outcome == local.Refused
	which, clear := b.LastReport(refused)
	a := answer{Granted, Local, left, 0}
	if left < need && (l.mode.Load()&modeStanding == 0 || l.shareLevel(now, l.group.cache.Hash(b.ID()), p) < 1) {
		a.reason = Limited
		switch missing := need - held - level; {
		case refused:
			a.retry = v.Retry
		case p.Call.Algorithm == lua.TokenBucket:
			a.retry = resetAfter(missing, p.NanosPerToken)
		case p.Call.Algorithm == lua.TokenBuckets: // by the slowest of them
			a.retry = resetAfter(missing, float64(p.Per)/float64(p.Tokens))
		case clear > now:
			a.retry = clear - now
		default:
			a.retry = p.Owner.(*resolvedLimit).retention
		}
		a.retry = max(a.retry, time.Microsecond)
	}
	l.decideBy(d, p, key, a)
	if p.Call.Algorithm != lua.TokenBucket {
		d.addReport(p, now, which, clear)
	}
	d.addShareOf(l, now, b.ID(), p, 1)
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
