package tiered

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Allow is AllowN for one token.
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision) {
	l.take(ctx, key, 1, nil, &d, false)
	return d
}

// AllowN decides whether a request for key that costs n tokens may go on now, and takes them if so.
//
// It answers at once when the process holds a lease with n tokens, or knows that Redis has none. Otherwise it asks Redis
// and waits, at most Options.Budget and no longer than ctx; ctx is looked at only while waiting. When Redis does not answer,
// the policy's FailMode decides. There is no error to handle: what went wrong is the Decision's Reason.
//
// The key may be any bytes, 1 to [MaxKeyLength] of them; n must be 1 to the policy's burst.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision) {
	l.take(ctx, key, n, nil, &d, false)
	return d
}

// take is AllowN. t, if not nil, learns how to give the tokens back. The Decision is written into its place: copies of it
// were a quarter of what a decision cost. plain says that the Limiter's mode has been looked at.
func (l *Limiter) take(ctx context.Context, key string, n int64, t *taking, d *Decision, plain bool) {
	if !plain && l.mode.Load() != 0 {
		l.takeBy(ctx, key, n, t, d)
		return
	}
	if uint(len(key)-1) >= MaxKeyLength || uint64(n-1) >= maxTokens {
		l.invalid(d, key, valid(key, n))
		return
	}
	g := l.group
	now := g.now()
	b := g.find(now, l.id(key))
	if t != nil {
		t.from(b, local.FromLease)
	}
	left, ok, renew := b.Take(now, n)
	if !ok {
		l.ask(ctx, now, b, key, n, t, d)
		return
	}
	if renew {
		b.apply(now, b.Renew(now))
	}
	l.decide(d, now, b, key, Granted, Local, left, 0)
}

// valid is Granted for what may be asked for at all; that a limit's burst is exceeded is found out with the key's.
func valid(key string, n int64) Reason {
	switch {
	case key == "" || len(key) > MaxKeyLength:
		return InvalidKey
	case n <= 0:
		return InvalidCost
	case n > maxTokens:
		return ExceedsBurst
	}
	return Granted
}

// decide writes a Decision by the limit of b, made at now. left counts for the reasons that know what is left.
func (l *Limiter) decide(d *Decision, now time.Duration, b *bucket, key string, r Reason, tier Tier, left int64, retry time.Duration) {
	p := b.Policy()
	l.decideBy(d, p, key, r, tier, left, retry)
	if p.Counting != local.Refills {
		which, clear := b.Told(r == Limited)
		d.told(p, now, which, clear)
	}
}

// decideBy is decide where only the policy is known.
func (l *Limiter) decideBy(d *Decision, p *local.Policy, key string, r Reason, tier Tier, left int64, retry time.Duration) {
	d.Allowed, d.Reason, d.Tier = Granted <= r && r <= Open, r, tier
	limit, remaining := p.Cap, left
	if w := p.Whole; w != nil { // a shard speaks for all
		k := int64(len(l.whole.shards))
		if r != ShareSpent { // the share is not the shard's
			left = min(left*k, w.Cap)
		}
		if p = w; r == ExceedsBurst {
			limit = w.Cap / k
			remaining = min(remaining, limit)
		} else {
			limit, remaining = w.Cap, left
		}
	}
	d.Policy, d.Key, d.Limit, d.Remaining, d.RetryAfter = l.name, key, limit, remaining, retry
	if Granted <= r && r <= ShareSpent || r == ExceedsBurst || r == InvalidCost {
		d.ResetAfter = resets(p, left)
	}
}

// standing writes a refusal that no tokens could have changed, with what b has left as far as this process knows.
func (l *Limiter) standing(d *Decision, b *bucket, key string, r Reason) {
	p, now := b.Policy(), l.group.now()
	held, level := b.Look(now)
	l.decideBy(d, p, key, r, None, min(held+max(level, 0), p.Cap), 0)
	if p.Counting != local.Refills {
		_, clear := b.Told(false)
		d.clears(p, now, clear)
	}
}

// invalid refuses a request that is not valid, or costs more than any burst.
func (l *Limiter) invalid(d *Decision, key string, r Reason) {
	p := l.terms.Load().fresh
	if r != InvalidKey {
		if b, ok := l.group.cache.Find(l.home(key)); ok && b.Policy().Rule != local.Unresolved {
			if p = b.Policy(); p.Rule == local.ByLimit {
				l.standing(d, b, key, r)
				p.Owner.(*plan).name(d, 0)
				return
			}
		}
	}
	switch p.Rule { // whose numbers mean nothing
	case local.Unlimited:
		l.unlimited(d, key)
		d.Allowed, d.Reason, d.Tier = false, r, None
	case local.Blocked:
		l.refuseBlocked(d, key)
		d.Reason, d.Tier = r, None
	default: // nobody asked for the key here: its bucket may be full
		left := p.Cap
		if r == InvalidKey {
			left = 0
		}
		l.decideBy(d, p, key, r, None, left, 0)
	}
}

// refusal is the Decision on a request that is not valid.
func (l *Limiter) refusal(key string, r Reason) (d Decision) {
	l.invalid(&d, key, r)
	l.finish(&d, 0)
	return d
}

// ask is take when the pot does not hold n tokens. What is known to be refused, and what an outage decides without looking
// at the share, it decides without a lock.
func (l *Limiter) ask(ctx context.Context, now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	p := b.Policy()
	if (p.Rule != local.ByLimit || n > p.Cap) && l.byRule(b, key, n, t, d) {
		return
	}
	g := l.group
	if g.closed.Load() {
		l.alone(now, b, key, n, t, d)
		return
	}
	node := b.node.Load()
	if node == nil {
		node = b.whereabouts()
	}
	// The breaker is not asked here, only its last word: it is asked when something is about to be sent.
	if node == nil || node.guard.State() == failover.Closed {
		if v, ok := b.Refuse(now, n); ok && !t.asksAgain() {
			l.decide(d, now, b, key, Limited, Local, v.Left, v.Retry)
			b.CountRefused(n)
			return
		}
		l.wait(ctx, now, b, key, n, t, d)
		return
	} else if node.guard.ReadyAt(now) {
		b.apply(now, b.Probe())
	} else if v, ok := b.AloneAtOnce(now, n); ok {
		r := Open
		if v.Outcome == local.Failed {
			r = Unavailable
		}
		if t != nil {
			t.from(b, local.FromShare)
		}
		l.decide(d, now, b, key, r, Failover, v.Left, 0)
		b.CountAlone(n)
		return
	}
	l.alone(now, b, key, n, t, d)
}

// wait is ask when only Redis can tell.
func (l *Limiter) wait(ctx context.Context, now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	g := l.group
	until := now + g.options.Budget
	p := g.patient()
	defer g.patients.Put(p)
	for {
		if p.Patient = t.asksAgain(); p.Patient {
			p.More = g.turns.behind(t.waits, b.Policy().Cap)
		}
		v, effect := b.Ask(now, n, until, p.Waiter)
		b.apply(now, effect)
		tier := Local
		if v.Outcome == local.Waiting {
			tier = Remote
			t.from(b, local.FromRedis)
			var reason Reason
			v, reason = p.wait(ctx, until-g.now(), b)
			now = g.now()
			switch reason {
			case Canceled:
				l.decide(d, now, b, key, Canceled, None, 0, 0)
				d.Expired = expired(ctx)
				return
			case Unavailable:
				if n := b.node.Load(); n != nil {
					n.overran()
				}
				l.alone(now, b, key, n, t, d)
				return
			}
		}
		if p.Patient && tier == Remote {
			t.waits.active = p.Active
		}
		switch v.Outcome {
		case local.Admitted:
			t.counted(v)
			if p.Patient {
				t.waits.more, t.waits.short = p.Came, p.Short
			}
			l.decide(d, now, b, key, Granted, tier, v.Left, 0)
			return
		case local.Refused:
			l.decide(d, now, b, key, Limited, tier, v.Left, v.Retry)
			return
		case local.Failed:
			g.settle(uint64(until)) // others may have failed with it; no two of them began to wait at one instant
			l.alone(now, b, key, n, t, d)
			return
		case local.Gone: // evicted and forgotten since we looked it up, or its policy was changed
			b = g.find(now, b.ID())
			t.from(b, local.FromLease)
			if l.byRule(b, key, n, t, d) {
				return
			}
		}
	}
}

// alone decides by the fail mode.
func (l *Limiter) alone(now time.Duration, b *bucket, key string, n int64, t *taking, d *Decision) {
	g := l.group
	for {
		t.from(b, local.FromShare)
		v := b.Alone(now, n, g.fleetOf(b))
		switch v.Outcome {
		case local.Gone:
			b = g.find(now, b.ID())
			if l.byRule(b, key, n, t, d) {
				return
			}
			continue
		case local.Admitted: // of the lease
			t.from(b, local.FromRedis)
			t.counted(v)
		case local.Shared:
			g.sharedAlone()
		}
		l.byItself(d, now, b, key, n, v)
		return
	}
}

// byItself writes the Decision that a fail mode came to, over n tokens.
func (l *Limiter) byItself(d *Decision, now time.Duration, b *bucket, key string, n int64, v local.Verdict) {
	switch v.Outcome {
	case local.Admitted:
		l.decide(d, now, b, key, Granted, Local, v.Left, 0)
	case local.Shared:
		l.decide(d, now, b, key, Shared, Failover, v.Left, 0)
	case local.Opened:
		l.decide(d, now, b, key, Open, Failover, v.Left, 0)
	case local.ShareSpent:
		if v.Retry == math.MaxInt64 { // never, while this process is alone
			v.Retry = 0
		}
		l.decide(d, now, b, key, ShareSpent, Failover, v.Left, v.Retry)
	default:
		l.decide(d, now, b, key, Unavailable, Failover, v.Left, 0)
	}
}

// expired reports whether a context that ended did so by its deadline.
func expired(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// patient is what a caller waits with: pooled per Group (not globally: a synctest bubble's timers stay in it), because each
// has a channel and a timer.
type patient struct {
	*local.Waiter
	timer *time.Timer
}

func newPatient() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &patient{local.NewWaiter(), t}
}

// patient returns one to wait with now.
func (g *Group) patient() *patient {
	p := g.patients.Get().(*patient)
	p.Quiet, p.Patient, p.More = g.trace.quiet(), false, 0
	return p
}

// wait waits for the verdict, at most d and no longer than ctx. The reason is Granted when there is a verdict.
func (p *patient) wait(ctx context.Context, d time.Duration, b *bucket) (local.Verdict, Reason) {
	var canceled <-chan struct{}
	if ctx != nil {
		canceled = ctx.Done()
	}
	p.timer.Reset(d)
	defer p.timer.Stop()
	reason := Unavailable
	select {
	case v := <-p.C:
		return v, Granted
	case <-p.timer.C:
	case <-canceled:
		reason = Canceled
	}
	if b.Leave(p.Waiter) {
		return local.Verdict{}, reason
	}
	return <-p.C, Granted // the verdict was faster
}
