package tiered

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// each is the policy of every shard for a key, given that of one.
func (l *Limiter) each(p *local.Policy) []*local.Policy {
	all := make([]*local.Policy, len(l.shards))
	for i, s := range l.shards {
		all[i] = s.plan(s.terms.Load(), p.Owner.(*plan).limits[0])
	}
	return all
}

// peekShards is Peek of a Limiter with shards, once it is known that limits like p, of one of them, decide.
func (l *Limiter) peekShards(ctx context.Context, key string, id local.ID, p *local.Policy, d *Decision) {
	g, policies := l.group, l.each(p)
	results := l.lookAtAll(ctx, id.Key, policies)
	if slices.ContainsFunc(results, func(r remote.Result) bool { return r.Err != nil }) && ctx.Err() != nil {
		l.decideBy(d, p, key, Canceled, None, 0, 0)
		return
	}
	first, second := l.places(id.Key)
	tier, sum, now := Remote, int64(0), g.now()
	known, grants, retry := false, false, time.Duration(0)
	least, which, forgets := int64(math.MaxInt64), uint8(0), time.Duration(0) // of the shard that has least
	for i, s := range l.shards {
		p := policies[i]
		clear := p.Owner.(*plan).longest
		b, cached := g.cache.Find(local.ID{Policy: s.number, Key: id.Key})
		var held, level int64
		if cached {
			held, level = b.Look(now)
		}
		told, until := uint8(0), time.Duration(0)
		if r := results[i]; r.Err == nil {
			level, told = r.Reply.Level, uint8(r.Reply.Which)
			if r.Reply.Reset > 0 {
				clear = time.Duration(r.Reply.Reset) * time.Microsecond
				until = now + clear
			}
		} else if tier = Local; cached {
			told, until = b.Told(false)
		} else {
			continue
		}
		left := min(held+max(level, 0), p.Cap)
		sum += left
		if s != first && s != second {
			continue
		}
		known, grants = true, grants || left > 0
		if left < least {
			least, which, forgets = left, told, until
		}
		wait := clear
		if p.Counting == local.Refills {
			wait = resetAfter(1-level, p.Nanos)
		}
		if retry == 0 || wait < retry {
			retry = max(wait, time.Microsecond)
		}
	}
	switch {
	case !known:
		l.decideBy(d, p, key, Unavailable, None, 0, 0)
	case grants:
		l.decideBy(d, p.Whole, key, Granted, tier, min(sum, p.Whole.Cap), 0)
	default:
		l.decideBy(d, p.Whole, key, Limited, tier, min(sum, p.Whole.Cap), retry)
	}
	if p.Counting != local.Refills {
		d.told(p, now, which, forgets)
	}
}

// lookAtAll is look for each shard of a key, by its policy, in one pipeline per node.
func (l *Limiter) lookAtAll(ctx context.Context, key string, policies []*local.Policy) []remote.Result {
	g := l.group
	results, looks := make([]remote.Result, len(l.shards)), make([]*glance, len(l.shards))
	jobs := make(map[*node][]due)
	for i, s := range l.shards {
		j := &glance{
			call: call(g.store.Name(s.kind, s.name, key), policies[i]), until: g.now() + g.options.Budget,
			reply: make(chan remote.Result, 1),
		}
		j.call.Phase = s.phase(key)
		n := g.node(g.store.Node(j.call.Bucket))
		switch {
		case g.closed.Load():
			results[i].Err = errClosed
		case n.guard.State() != failover.Closed:
			results[i].Err = errOpen
		default:
			looks[i] = j
			jobs[n] = append(jobs[n], due{j, j.call.Bucket})
		}
	}
	for n, jobs := range jobs {
		n.push(jobs...)
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.Budget)
	defer cancel()
	for i, j := range looks {
		if j == nil {
			continue
		}
		select {
		case results[i] = <-j.reply:
		case <-ctx.Done():
			results[i].Err = ctx.Err()
		}
	}
	return results
}

// resetShards is Reset of a Limiter with shards: of all of them, one of which has limits like p.
func (l *Limiter) resetShards(ctx context.Context, key string, id local.ID, p *local.Policy) error {
	g := l.group
	for _, r := range l.lookAtAll(ctx, id.Key, l.each(p)) {
		if r.Err != nil {
			return l.resetError(ctx, r.Err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.Budget)
	defer cancel()
	for pending := l.shards; len(pending) > 0; {
		now, jobs := g.now(), make(map[*node][]due)
		answers := make([]*local.Waiter, len(pending))
		for i, s := range pending {
			b := g.cache.Get(now, local.ID{Policy: s.number, Key: id.Key})
			s.resolve(b, key)
			answers[i] = local.NewWaiter()
			v, effect := b.Reset(answers[i])
			if effect.Send {
				n := b.route()
				jobs[n] = append(jobs[n], due{b, b.name()})
				effect.Send = false
			}
			b.apply(now, effect)
			if v.Outcome != local.Waiting {
				answers[i].C <- v
			}
		}
		for n, jobs := range jobs {
			n.push(jobs...)
		}
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
			case <-ctx.Done():
				return l.resetError(ctx, ctx.Err())
			}
		}
		pending = again
	}
	return nil
}
