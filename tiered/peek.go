package tiered

import (
	"context"
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Peek is PeekN for one token.
func (l *Limiter) Peek(ctx context.Context, key string) Decision { return l.PeekN(ctx, key, 1) }

// PeekN returns what [Limiter.AllowN] would return now, but takes nothing, so Remaining and
// ResetAfter are those of before the request. It asks Redis where AllowN would, by a call that
// takes nothing, and blocks as long at most. Otherwise Remaining is as new as this process' lease,
// or as its knowledge that the key is refused. If Redis does not answer, it returns what the
// FailMode would decide. What this process has charged counts.
//
// With an n of 0 it asks nobody, and returns what this process knows by the last reply of Redis and
// the refill since: with Reason Unknown if that is nothing, or too old.
func (l *Limiter) PeekN(ctx context.Context, key string, n int64) Decision {
	return l.For(key).N(n).Peek(ctx)
}

// Peek is [Limiter.PeekN] for a use of one key, by the limit or the plan that it has. A use of
// several keys is refused with Reason Unknown: look at each key.
func (u Use) Peek(ctx context.Context) (d Decision) {
	if u.n != 1 || u.first[0].limiter == nil {
		return d
	}
	p := &u.first[0]
	l := p.limiter
	if p.cost == 0 {
		d, _ = l.known(p.key, p.limit)
		return d
	}
	if r := l.valid(p.key, p.cost); r != Granted {
		return l.refusal(p.key, p.cost, r)
	}
	ctx = orBackground(ctx)
	t := l.core.Foresee(ctx, p.key, p.cost, p.limit)
	if tell(&d, &t); l.group.trace.hooks.Decision != nil {
		l.group.trace.decision(d)
	}
	return d
}

// PeekEach returns the state of each limit of key, in the order of [Limit.Each], each as Peek would
// if it were the only one. It takes nothing, and asks Redis once at most. So it blocks for at most
// Options.Budget. If Redis does not answer by then, it returns an error and no Decisions.
func (l *Limiter) PeekEach(ctx context.Context, key string) ([]Decision, error) {
	return l.For(key).PeekEach(ctx)
}

// PeekEach is [Limiter.PeekEach] for a use of one key, by the limits or the plan that it has. It is
// about one token, whatever the use costs.
func (u Use) PeekEach(ctx context.Context) ([]Decision, error) {
	if u.n != 1 {
		return nil, Decision{}.Err()
	}
	l, key, carried := u.first[0].limiter, u.first[0].key, u.first[0].limit
	if r := l.valid(key, 1); r != Granted {
		return nil, l.refusal(key, 1, r).Err()
	}
	ctx = orBackground(ctx)
	var p *local.Policy
	if carried != nil {
		p = carried.Policy()
	} else {
		p = l.core.PolicyFor(l.core.ID(key), key)
	}
	if p.Rule != local.ByLimit {
		return []Decision{u.N(1).Peek(ctx)}, nil
	}
	alones := make([]*local.Policy, len(engine.Owner(p).Limits))
	for i := range alones {
		alones[i] = alone(p, i)
	}
	told, err := l.core.ForeseeEach(ctx, key, carried, alones)
	if err != nil {
		return nil, fmt.Errorf("%w: a peek at a key of policy %q: %w", ErrUnavailable, l.core.Name, err)
	}
	all := make([]Decision, len(told))
	for i := range all {
		tell(&all[i], &told[i])
	}
	return all, nil
}

// alone returns the policy p as if its i-th limit, from 0, were the only one.
func alone(p *local.Policy, i int) *local.Policy {
	of := engine.Owner(p)
	if len(of.Limits) == 1 {
		return p
	}
	limit := of.Limits[i]
	owner := *of
	owner.Limit, owner.Limits, owner.Smallest, owner.Retention = limit, of.Limits[i:i+1], 1, Limit(limit).retention(policyOf(of.Settings).Algorithm)
	if of.Shares != nil {
		owner.Shares = of.Shares[i : i+1]
	}
	of1 := func(p *local.Policy, burst int64) *local.Policy {
		q := *p
		q.Owner, q.Cap, q.NanosPerToken = &owner, burst, limit.NanosPerToken()
		q.Call.Algorithm = lua.Algorithm(policyOf(of.Settings).Algorithm)
		return &q
	}
	one := of1(p, p.Call.Limits()[i].Cap)
	if p.Parent != nil {
		one.Parent = of1(p.Parent, limit.Most())
	}
	return one
}

// known returns what this process knows of a key, by the limit that a request carries, or nil. It
// reports false if Redis has told it nothing, or too long ago.
func (l *Limiter) known(key string, limit *engine.Resolved) (d Decision, ok bool) {
	if l.valid(key, 1) != Granted {
		return d, false
	}
	t, ok := l.core.Known(key, limit)
	if ok {
		tell(&d, &t)
	}
	return d, ok
}
