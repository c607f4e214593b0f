package tiered

import (
	"cmp"
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
		p.write(d)
	case p.state == taken:
		as := *p // two uses may share the part
		if back && p.bucket != nil {
			as.left += p.cost
		}
		as.write(d)
	default:
		o, b := p.limiter.invalid(p.key, Unknown)
		o.write(d, p.key, b, p.now)
	}
}

// PeekEach returns the state of each limit of key: first that of Policy.Limit, then those of Policy.Also. A Decision
// is what [Limiter.Peek] would return if its limit were the only one. PeekEach takes nothing, asks Redis once and blocks for at most Options.Budget. If
// Redis does not answer by then, it returns an error and no Decisions.
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
	all := make([]Decision, len(limits))
	for i, limit := range limits {
		all[i] = Decision{
			Reason: Limited, Tier: Remote, LimitNumber: uint8(i + 1), Policy: l.name, Key: key, Burst: limit.burst(),
			RetryAfter: math.MaxInt64,
		}
	}
	until := l.group.now() + patience(ctx, l.group.options.Budget)
	var runs []*dryRun
	b := l.bucketToPeek(key)
	for i := range limits {
		runs = append(runs, b.dryRun(1, i, until))
	}
	for i, j := range runs {
		c, r := j.wait(ctx)
		if r.Err == nil && r.Reply.Code == lua.Late { // the node's clock is known better now
			c, r = j.bucket.dryRun(1, j.limit, until).wait(ctx)
		}
		if r.Err != nil || r.Reply.Code > lua.Denied {
			return nil, fmt.Errorf("%w: a peek at a key of policy %q: %w", ErrUnavailable, l.name, cmp.Or(r.Err, errNotAsked))
		}
		now, d := l.group.now(), &all[i]
		v, held := j.bucket.Foreseen(now, 1, c, r.Reply), int64(0)
		if c.Direct { // it needs none of what is held
			held, _ = j.bucket.Peek(now)
		}
		d.Remaining = min(d.Remaining+held+v.Left, d.Burst)
		d.ResetAfter = max(d.ResetAfter, time.Duration(r.Reply.Reset)*time.Microsecond)
		d.RetryAfter = min(d.RetryAfter, max(v.Retry, time.Microsecond))
	}
	now := l.group.now()
	shares := usableShares(p)
	for i := range all {
		d, has := &all[i], all[i].Remaining
		if shares != nil {
			hash, one := l.group.cache.Hash(id), shares[i:i+1]
			level := l.group.shares.Level(now, hash, one)
			if d.Remaining = min(has+level, d.Burst); l.lends(one, 1) {
				has += level
				d.RetryAfter = max(min(d.RetryAfter, l.group.shares.Wait(now, hash, one, 1)), time.Microsecond)
			}
		}
		if !p.Call.Algorithm.Window() {
			d.ResetAfter = resetAfter(d.Burst-d.Remaining, limits[i].nanosPerToken())
		}
		if has > 0 {
			d.Allowed, d.Reason, d.RetryAfter = true, Granted, 0
		}
		d.ResetAfter = max(d.ResetAfter, d.RetryAfter)
	}
	if len(limits) == 1 {
		all[0].LimitNumber = 0
	}
	return all, nil
}
