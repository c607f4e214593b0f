package engine

import (
	"context"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// goByOwn has a part without a limit go by the key's own one, if others carry limits by now: the
// first of them may have come while this one waited.
func (p *Part) goByOwn() {
	if p.limit == nil && p.bucket != nil { // else its key may not be valid
		p.limit, p.own = p.Limiter.limitOf(p.Key, nil), true
	}
}

// Told returns what there is to tell of an outcome that Take returned, with the key's own limit if
// requests carry limits by now.
func (l *Limiter) Told(o local.Outcome, key string, n int64, b *Bucket, now time.Duration) Told {
	t := Told{Outcome: o, Key: key, Cost: n, Bucket: b, Now: now}
	if b != nil { // else the key may not be valid
		t.Carried = l.limitOf(key, nil)
	}
	return t
}

// byOwnLimit corrects how long a refusal lasts that is by a larger limit than the request's own.
// The key has the larger one only until nobody has used it for a while, and then the own one
// decides. If the tokens come later, Redis is asked when they come by that.
func (p *Part) byOwnLimit(ctx context.Context, o local.Outcome) local.Outcome {
	b, g := p.bucket, p.Limiter.Group
	if o.Reason != local.Limited || b == nil {
		return o
	}
	m, own := Owner(o.Policy).mixed, p.limit
	if m == nil || own == nil {
		return o
	}
	until := m.keptUntil(Owner(o.Policy), own, p.now)
	if o.Retry < until-p.now || own.Limit.Rule() != local.ByLimit || p.Cost > own.Most() {
		return o
	}
	at := m.told.Load()
	if at == nil || at.cost != p.Cost || at.by != own || p.now >= at.believed {
		by := own.Policy()
		_, r := b.dryRun(p.Cost, func(c local.Call) local.Call { return c.By(by) }, p.until).wait(ctx)
		if r.Err != nil || r.Reply.Retry < 0 {
			return o
		}
		p.now = g.Now()
		at = &toldLater{p.Cost, own, max(until, p.now+time.Duration(r.Reply.Retry)*time.Microsecond), p.now + time.Second}
		m.told.Store(at)
	}
	o.Retry = max(at.opens-p.now, time.Microsecond)
	return o
}

// keptUntil returns until when a key keeps what it has of o, which is larger than own: the first to
// end of burst and rate.
func (m *mixed) keptUntil(o, own *Resolved, now time.Duration) time.Duration {
	until := forever
	for i := range m.kept {
		burst, rate := time.Duration(m.kept[i].burst.Load()), time.Duration(m.kept[i].rate.Load())
		_, keepsBurst, keepsRate := o.Limits[i].beside(own.Limits[i], o.Settings.Windows, now < burst, now < rate)
		if keepsBurst {
			until = min(until, burst)
		}
		if keepsRate {
			until = min(until, rate)
		}
	}
	return until
}
