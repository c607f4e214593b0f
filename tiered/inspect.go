package tiered

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// parts are the Limiters that have a bucket of each key: the shards, or this one.
func (l *Limiter) parts() []*Limiter {
	if l.shards != nil {
		return l.shards
	}
	return []*Limiter{l}
}

// each is the policy of every part for a key, given that of one.
func (l *Limiter) each(p *local.Policy) []*local.Policy {
	if l.shards == nil {
		return []*local.Policy{p}
	}
	all := make([]*local.Policy, len(l.shards))
	for i, s := range l.shards {
		all[i] = s.plan(s.terms.Load(), p.Owner.(*plan).limits[0])
	}
	return all
}

// numbers are those that decide over a key.
func (l *Limiter) numbers(id local.ID, key string) *local.Policy {
	l, _ = l.places(id.Key)
	id.Policy = l.number
	t := l.terms.Load()
	if t.policy.PerKey == nil {
		return t.fresh
	}
	b := l.group.find(l.group.now(), id)
	l.resolve(b, key)
	return b.Policy()
}

// Peek reports what Allow would say now, and takes nothing. It asks Redis, once and for at most Options.Budget; when that
// fails, the answer is what this process knows. Of a policy with Shards it asks all of the key's, and Remaining is what they have
// together.
func (l *Limiter) Peek(ctx context.Context, key string) (d Decision) {
	if r := valid(key, 1); r != Granted {
		return l.refusal(key, r)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	defer func() { l.finish(&d, 0) }()
	id := l.id(key)
	p := l.numbers(id, key)
	switch p.Rule {
	case local.Unlimited:
		l.unlimited(&d, key)
		return d
	case local.Blocked:
		l.refuseBlocked(&d, key)
		return d
	}
	policies := l.each(p)
	results := l.look(ctx, id.Key, policies)
	whole := p
	if p.Whole != nil {
		whole = p.Whole
	}
	if slices.ContainsFunc(results, func(r remote.Result) bool { return r.Err != nil }) && ctx.Err() != nil {
		l.decideBy(&d, whole, key, Canceled, None, 0, 0)
		d.Expired = expired(ctx)
		return d
	}
	first, second := l.places(id.Key)
	tier, now, sum := Remote, l.group.now(), int64(0)
	var least *sight // of the one or two that Allow would ask
	retry := time.Duration(math.MaxInt64)
	grants := false
	for i, s := range l.parts() {
		if results[i].Err != nil {
			tier = Local
		}
		v := s.sight(now, id.Key, policies[i], results[i])
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
		retry, grants = min(retry, v.retry), grants || v.left > 0
	}
	switch {
	case least == nil:
		l.decideBy(&d, whole, key, Unavailable, None, 0, 0)
		return d
	case grants:
		l.decideBy(&d, whole, key, Granted, tier, min(sum, whole.Cap), 0)
	default:
		l.decideBy(&d, whole, key, Limited, tier, min(sum, whole.Cap), retry)
	}
	if p.Counting != local.Refills {
		d.told(p, now, least.which, least.forgets)
	}
	return d
}

// sight is what is known of one bucket of a key.
type sight struct {
	left    int64         // tokens
	retry   time.Duration // until there is one, if none is left
	which   uint8         // of several limits has fewest, from 1; 0 if nobody said
	forgets time.Duration // when nothing counts any more, since the Group's base; 0 if nobody said
}

// sight is that of a part: what Redis says, with what is held here, and where it does not answer what this process knows; nil
// if it knows nothing.
func (l *Limiter) sight(now time.Duration, key string, p *local.Policy, r remote.Result) *sight {
	var held, level int64
	v, clear := &sight{}, p.Owner.(*plan).longest
	b, cached := l.group.cache.Find(local.ID{Policy: l.number, Key: key})
	if cached {
		held, level = b.Look(now)
	}
	switch {
	case r.Err == nil:
		level, v.which = r.Reply.Level, uint8(r.Reply.Which)
		if r.Reply.Reset > 0 {
			clear = time.Duration(r.Reply.Reset) * time.Microsecond
			v.forgets = now + clear
		}
	case cached:
		v.which, v.forgets = b.Told(false)
	default:
		return nil
	}
	v.left, v.retry = min(held+max(level, 0), p.Cap), clear
	if p.Counting == local.Refills {
		v.retry = resetAfter(1-level, p.Nanos)
	}
	v.retry = max(v.retry, time.Microsecond)
	return v
}

// Reset fills the bucket of key: what was used is forgiven, what is leased stays leased, and what is known to be
// denied is forgotten here (other processes notice within 5 s). It waits at most two Options.Budget. Nil means that
// Redis did it; an error means that it is not known whether the bucket was reset.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if r := valid(key, 1); r != Granted {
		return l.refusal(key, r).Err()
	}
	if ctx == nil {
		ctx = context.Background()
	}
	g := l.group
	id := l.id(key)
	p := l.numbers(id, key)
	if p.Rule != local.ByLimit { // there is no bucket
		return nil
	}
	// A refund needs a deadline, and that the node's clock: a look teaches it, and tells a Redis that is down.
	for _, r := range l.look(ctx, id.Key, l.each(p)) {
		if r.Err != nil {
			return l.resetError(ctx, r.Err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.Budget)
	defer cancel()
	for pending := l.parts(); len(pending) > 0; {
		var jobs []addressed
		answers := make([]*local.Waiter, len(pending))
		for i, s := range pending {
			now := g.now()
			b := g.cache.Get(now, local.ID{Policy: s.number, Key: id.Key})
			s.resolve(b, key)
			answers[i] = local.NewWaiter()
			answers[i].Quiet = g.trace.quiet()
			if b.Policy().Rule != local.ByLimit { // it has lost its limit meanwhile
				answers[i].C <- local.Verdict{Outcome: local.Admitted}
				continue
			}
			v, effect := b.Reset(answers[i])
			if effect.Send {
				jobs = append(jobs, b.route())
				effect.Send = false
			}
			b.apply(now, effect)
			if v.Outcome != local.Waiting {
				answers[i].C <- v
			}
		}
		push(jobs)
		var again []*Limiter
		for i, w := range answers {
			select {
			case v := <-w.C:
				switch v.Outcome {
				case local.Failed:
					return l.resetError(ctx, nil)
				case local.Gone: // evicted and forgotten since we looked it up
					again = append(again, pending[i])
				}
			case <-ctx.Done(): // the answer goes to w, which nobody reads any more
				return l.resetError(ctx, ctx.Err())
			}
		}
		pending = again
	}
	return nil
}

func (l *Limiter) resetError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		err = context.Canceled
	}
	if err == nil {
		return fmt.Errorf("%w: a key of policy %q is not known to be reset", ErrUnavailable, l.name)
	}
	return fmt.Errorf("%w: a key of policy %q is not known to be reset: %w", ErrUnavailable, l.name, err)
}
