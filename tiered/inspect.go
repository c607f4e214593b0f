package tiered

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// glance is a job that looks at a bucket and takes nothing.
type glance struct {
	call  remote.Call
	until time.Duration      // nobody waits from here on
	reply chan remote.Result // capacity 1
}

func (p *glance) begin(n *node, now time.Duration, _ string) (remote.Call, bool) {
	if now >= p.until {
		return remote.Call{}, false
	}
	p.call.Seq = n.group.seq.Add(1)
	return p.call, true
}

func (p *glance) drop(*node, time.Duration) { p.reply <- remote.Result{Err: errOpen} }

func (p *glance) end(_ *node, _ time.Duration, _ *remote.Call, _ time.Duration, r remote.Result) {
	p.reply <- r
}

// look asks Redis for a bucket's state, for at most Options.Budget.
func (l *Limiter) look(ctx context.Context, id local.ID, p *local.Policy) (remote.Reply, error) {
	g := l.group
	if g.closed.Load() {
		return remote.Reply{}, errClosed
	}
	j := &glance{
		call: call(g.store.Name(l.kind, l.name, id.Key), p), until: g.now() + g.options.Budget,
		reply: make(chan remote.Result, 1),
	}
	j.call.Phase = l.phase(id.Key)
	n := g.node(g.store.Node(j.call.Bucket))
	if n.guard.State() != failover.Closed { // a look is no probe: it writes nothing
		return remote.Reply{}, errOpen
	}
	n.push(due{j, j.call.Bucket})
	ctx, cancel := context.WithTimeout(ctx, g.options.Budget)
	defer cancel()
	select {
	case r := <-j.reply:
		return r.Reply, r.Err
	case <-ctx.Done():
		return remote.Reply{}, ctx.Err()
	}
}

var (
	errClosed = errors.New("tiered: the Group is closed")
	errOpen   = errors.New("tiered: the breaker is open")
)

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
	g := l.group
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
	if l.shards != nil {
		l.peekShards(ctx, key, id, p, &d)
		return d
	}
	tier := Remote
	var held, level int64
	clear := p.Owner.(*plan).longest
	now, which, forgets := g.now(), uint8(0), time.Duration(0)
	if r, err := l.look(ctx, id, p); err == nil {
		level, which = r.Level, uint8(r.Which)
		if r.Reset > 0 {
			clear = time.Duration(r.Reset) * time.Microsecond
			now = g.now()
			forgets = now + clear
		}
		if b, ok := g.cache.Find(id); ok {
			held, _ = b.Look(g.now())
		}
	} else if ctx.Err() != nil {
		l.decideBy(&d, p, key, Canceled, None, 0, 0)
		return d
	} else if b, ok := g.cache.Find(id); ok {
		tier = Local
		held, level = b.Look(now)
		which, forgets = b.Told(false)
	} else {
		l.decideBy(&d, p, key, Unavailable, None, 0, 0)
		return d
	}
	if left := min(held+max(level, 0), p.Cap); left > 0 {
		l.decideBy(&d, p, key, Granted, tier, left, 0)
	} else {
		retry := resetAfter(1-level, p.Nanos)
		if p.Counting != local.Refills {
			retry = clear
		}
		l.decideBy(&d, p, key, Limited, tier, 0, max(retry, time.Microsecond))
	}
	if p.Counting != local.Refills {
		d.told(p, now, which, forgets)
	}
	return d
}

// numbers are those that decide over a key.
func (l *Limiter) numbers(id local.ID, key string) *local.Policy {
	if l.shards != nil {
		l, _ = l.places(id.Key)
		id.Policy = l.number
	}
	t := l.terms.Load()
	if t.policy.PerKey == nil {
		return t.fresh
	}
	b := l.group.find(l.group.now(), id)
	l.resolve(b, key)
	return b.Policy()
}

// Reset fills the bucket of key: what was used is forgiven, what is leased stays leased, and what is known to be denied
// is forgotten here (other processes notice within 5 s). It waits at most two Options.Budget. An error means that it is not
// known whether the bucket was reset.
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
	if l.shards != nil {
		return l.resetShards(ctx, key, id, p)
	}
	// A refund needs a deadline, and that the node's clock: a look teaches it, and tells a Redis that is down.
	if _, err := l.look(ctx, id, p); err != nil {
		return l.resetError(ctx, err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.Budget)
	defer cancel()
	w := local.NewWaiter()
	for {
		now := g.now()
		b := g.cache.Get(now, id)
		v, effect := b.Reset(w)
		b.apply(now, effect)
		if v.Outcome == local.Waiting {
			select {
			case v = <-w.C:
			case <-ctx.Done(): // the answer goes to w, which nobody reads any more
				return l.resetError(ctx, ctx.Err())
			}
		}
		switch v.Outcome {
		case local.Admitted:
			return nil
		case local.Failed:
			return l.resetError(ctx, nil)
		}
	}
}

func (l *Limiter) resetError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		err = context.Canceled
	}
	if err == nil {
		return fmt.Errorf("%w: no answer to the reset of a key of policy %q", ErrUnavailable, l.name)
	}
	return fmt.Errorf("%w: no answer to the reset of a key of policy %q: %w", ErrUnavailable, l.name, err)
}
