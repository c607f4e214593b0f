package tiered

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// AllowEach does what [Uses.Allow] does. It also writes the Decision of the i-th use given to [All] to each[i]. A use
// that refused has its own refusal. If the request is refused, a use that would have been admitted is Granted, with its
// tokens back in Remaining. One that was not decided, because another had refused before, has Reason Unknown. Its
// Remaining is what this process held and last saw in Redis. If each is longer than the uses, its last elements stay as
// they are. If it is shorter, the last uses write nothing.
func (u Uses) AllowEach(ctx context.Context, each []Decision) (d Decision) {
	var room [inlineParts]part
	r := u.request(room[:0])
	r.decide(ctx, &d)
	back := r.has(refused)
	for i := range u.n {
		use := u.at(i)
		if use.place >= len(each) {
			continue
		}
		for j := range r {
			if p := &r[j]; p.limiter == use.limiter && p.key == use.key {
				p.report(&each[use.place], back)
			}
		}
	}
	return d
}

// report writes the state of the part. back says that the request was refused, and that what the part took went back.
func (p *part) report(d *Decision, back bool) {
	switch {
	case p.limiter == nil, p.state == refused:
		*d = p.d
	case p.state == taken:
		if *d = p.d; back && p.bucket != nil {
			d.Remaining = min(d.Remaining+p.cost, d.Burst)
		}
	default:
		*d = Decision{}
		p.limiter.invalid(d, p.key, Unknown)
	}
}

// PeekEach returns the state of each limit of key: first that of Policy.Limit, then those of Policy.Also. A Decision
// is what [Limiter.Peek] would return if its limit were the only one. PeekEach takes nothing, asks Redis once (with
// Shards once for each shard, all at the same time) and blocks for at most Options.Budget. If Redis does not answer by
// then, it returns an error and no Decisions. With Shards a limit's Remaining is the sum of the shards.
//
// If the tightest limit is enough, PeekEach is not needed: the Decision of [Limiter.AllowN] has its state.
func (l *Limiter) PeekEach(ctx context.Context, key string) ([]Decision, error) {
	if r := l.valid(key, 1); r != Granted {
		return nil, l.refusal(key, r).Err()
	}
	if ctx == nil {
		ctx = context.Background()
	}
	id := l.id(key)
	p := l.policyFor(id, key)
	limits := p.Owner.(*resolvedLimit).limits
	if p.Rule != local.ByLimit {
		return []Decision{l.Peek(ctx, key)}, nil
	}
	policies, buckets := l.bucketPolicies(p), l.bucketLimiters()
	var calls []lua.Call
	for i, s := range buckets {
		c := call(l.group.store.Name(s.kind, s.name, id.Key), policies[i])
		c.Phase = s.phase(id.Key)
		for _, limit := range c.Limits() {
			c.Cap, c.Tokens, c.Period, c.Span, c.Also = limit.Cap, limit.Tokens, limit.Period, limit.Span, nil
			calls = append(calls, c)
		}
	}
	results, now := l.group.peekCalls(ctx, calls), l.group.now()
	all := make([]Decision, len(limits))
	for i, limit := range limits {
		all[i] = Decision{
			Reason: Limited, Tier: Remote, LimitNumber: uint8(i + 1), Policy: l.name, Key: key, Burst: limit.burst(),
			RetryAfter: math.MaxInt64,
		}
	}
	for i, r := range results {
		if r.Err != nil {
			return nil, fmt.Errorf("%w: a peek at a key of policy %q: %w", ErrUnavailable, l.name, r.Err)
		}
		s, d := buckets[i/len(limits)], &all[i%len(limits)]
		left := r.Reply.Level
		if b, ok := l.group.cache.Find(local.ID{Policy: s.number, Key: id.Key}); ok {
			held, _ := b.Peek(now)
			left += held - b.Charged() // Redis hears of it within 50 ms
		}
		clear := time.Duration(r.Reply.Reset) * time.Microsecond
		retry := clear
		if c := calls[i]; !p.Call.Algorithm.Window() {
			retry = resetAfter(1-left, float64(c.Period)*float64(time.Microsecond)/float64(c.Tokens))
		}
		// What one shard lacks, the others cannot give.
		d.Remaining = min(d.Remaining+max(left, 0), d.Burst)
		d.ResetAfter, d.RetryAfter = max(d.ResetAfter, clear), min(d.RetryAfter, retry)
	}
	shares := usableShares(p)
	for i := range all {
		d := &all[i]
		if shares != nil {
			hash, one := l.group.cache.Hash(id), shares[i:i+1]
			d.Remaining = min(d.Remaining+l.group.shares.Level(now, hash, one), d.Burst)
			d.RetryAfter = max(min(d.RetryAfter, l.group.shares.Wait(now, hash, one, 1)), time.Microsecond)
		}
		if !p.Call.Algorithm.Window() {
			d.ResetAfter = resetAfter(d.Burst-d.Remaining, limits[i].nanosPerToken())
		}
		if d.Remaining > 0 {
			d.Allowed, d.Reason, d.RetryAfter = true, Granted, 0
		}
	}
	if len(limits) == 1 {
		all[0].LimitNumber = 0
	}
	return all, nil
}
