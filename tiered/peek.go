package tiered

import (
	"context"
	"fmt"
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
		return l.refusal(key, n, r)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	if l.foresee(ctx, key, n, &d); l.mode.Load()&modeTraced != 0 {
		l.group.trace.decision(d)
	}
	return d
}

// PeekEach returns the state of each limit of key: first that of Policy.Limit, then those of Policy.Also. A Decision
// is what [Limiter.Peek] would return if its limit were the only one. PeekEach takes nothing, asks Redis once and blocks for at most Options.Budget. If
// Redis does not answer by then, it returns an error and no Decisions.
//
// If the tightest limit is enough, PeekEach is not needed: the Decision of [Limiter.AllowN] has its state.
func (l *Limiter) PeekEach(ctx context.Context, key string) ([]Decision, error) {
	if r := l.valid(key, 1); r != Granted {
		return nil, l.refusal(key, 1, r).Err()
	}
	if ctx == nil {
		ctx = context.Background()
	}
	p := l.policyFor(l.id(key), key)
	if p.Rule != local.ByLimit {
		return []Decision{l.Peek(ctx, key)}, nil
	}
	until := l.group.now() + patience(ctx, l.group.options.Budget)
	b := l.bucketToPeek(key)
	runs := make([]*dryRun, len(p.Owner.(*resolvedLimit).limits))
	for i := range runs {
		runs[i] = b.dryRun(1, i, until)
	}
	all := make([]Decision, len(runs))
	for i, j := range runs {
		c, r := j.wait(ctx)
		if r.Err != nil {
			return nil, fmt.Errorf("%w: a peek at a key of policy %q: %w", ErrUnavailable, l.name, r.Err)
		}
		l.decideDry(&all[i], b, key, alone(p, i), 1, c, r.Reply)
		if len(all) > 1 {
			all[i].LimitNumber = uint8(i + 1)
		}
	}
	return all, nil
}

// alone returns the policy p as if its i-th limit, from 0, were the only one.
func alone(p *local.Policy, i int) *local.Policy {
	of := p.Owner.(*resolvedLimit)
	if len(of.limits) == 1 {
		return p
	}
	limit := of.limits[i]
	owner := *of
	owner.limits, owner.smallest, owner.retention = of.limits[i:i+1], 1, limit.retention(of.settings.policy.Algorithm)
	if of.shares != nil {
		owner.shares = of.shares[i : i+1]
	}
	of1 := func(p *local.Policy, burst int64) *local.Policy {
		q := *p
		q.Owner, q.Cap, q.NanosPerToken = &owner, burst, limit.nanosPerToken()
		if q.Call.Algorithm == lua.TokenBuckets {
			q.Call.Algorithm = lua.TokenBucket
		}
		return &q
	}
	one := of1(p, p.Call.Limits()[i].Cap)
	if p.Parent != nil {
		one.Parent = of1(p.Parent, limit.burst())
	}
	return one
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
	o.write(&d, key, 1, b, now)
	return d, true
}

// known returns the outcome of one token of a key by what this process knows of its bucket.
func (l *Limiter) known(now time.Duration, b *bucket) outcome {
	p, share := b.Policy(), b.share()
	held, level := b.Peek(now)
	left, need := min(held+max(level, 0), p.Cap), 1+b.Reserved()
	v, sure := b.Foresee(now, need)
	refused := sure && v.Outcome == local.Refused
	_, clear := b.LastReport(refused)
	o := outcome{p, how{Granted, Local, false}, left, 0}
	if left < need && !share.holds(now, 1) {
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
	return share.tell(o, now, 1)
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
