package engine

import (
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// How decisions are counted and told to the hook. Stats reads what was counted.

// countRequest counts a request of n tokens. It must be called where its tokens are counted.
func (l *Limiter) countRequest(o Outcome, key string, n int64) {
	if n == 1 && o.Reason <= Unavailable && o.Tier != Remote {
		return
	}
	l.Requests.Add(key, o.kind(), n, 1)
	if k, ok := o.byRedis(); ok {
		l.Requests.Add(key, k, n, 1)
	}
}

// tryOut is asTried for a request of n tokens, which it counts.
func (l *Limiter) tryOut(o Outcome, key string, n int64) Outcome {
	tried := l.asTried(o)
	if tried != o {
		l.Shadowed.Add(max(n, 0))
		l.Requests.Add(key, report.Shadowed, n, 1)
	}
	return tried
}

// asTried makes a refusal an admission if the policy is only tried out. Nobody is to wait for it.
func (l *Limiter) asTried(o Outcome) Outcome {
	if l.mode.Load()&ModeShadow != 0 && !o.Allowed() {
		o.Reason, o.Retry = Shadowed, 0
	}
	return o
}

// observe tells the hook of a request that is counted.
func (l *Limiter) observe(t *Told) {
	if l.mode.Load()&ModeTraced != 0 {
		l.Group.Hooks.Decision(t)
	}
}

// Refuse returns the refusal of a request for n tokens that is not valid, and counts it.
func (l *Limiter) Refuse(key string, n int64, r Reason) Told {
	o, b := l.invalid(key, r)
	l.countRequest(o, key, 0)
	t := Told{Outcome: l.tryOut(o, key, 0), Key: key, Cost: n, Bucket: b, Now: l.Group.Now()}
	l.observe(&t)
	return t
}

// invalid returns the refusal of a request that is not valid, and the bucket of its key if there is one.
func (l *Limiter) invalid(key string, r Reason) (Outcome, *Bucket) {
	p := l.settings.Load().Initial
	if r != InvalidKey {
		if b, ok := l.Group.Cache.Find(l.ID(key)); ok && b.Policy().Rule != local.Unresolved {
			return b.refuseForGood(l.Group.Now(), r), b
		}
	}
	left := p.Cap // this process does not know the key: its bucket may be full
	if r == InvalidKey {
		left = 0
	}
	return Outcome{p, How{r, None, false}, left, 0}, nil
}
