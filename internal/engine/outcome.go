package engine

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// Reason says why a request was admitted or refused. tiered.Reason has the same values, and says what they mean.
type Reason uint8

// The reasons. Granted, Fallback, Open and Shadowed admit.
const (
	Unknown Reason = iota
	Granted
	Fallback
	Open
	Shadowed
	Limited
	FallbackSpent
	Unavailable
	ExceedsBurst
	InvalidKey
	InvalidCost
	Canceled
)

// Tier says where a request was decided: in this process, by Redis, by the fail mode, or nowhere. tiered.Tier has the same
// values.
type Tier uint8

// The tiers.
const (
	None Tier = iota
	Local
	Remote
	Failover
)

// An Outcome is how a request for one key was decided. Whatever decides returns one.
//
// It goes up in registers, because the compiler keeps a struct there that has at most four fields, as its own have, and 32
// bytes. With one field more a decision costs half as much again, and as much with a Decision in its place.
type Outcome struct {
	Policy *local.Policy // that decided; nil if nothing did
	How
	Left int64 // tokens, with those of a standing share; for some reasons 0

	// Retry is the time until the tokens can be there; 0 for never. Three read it: the Decision reports it, refusesLonger
	// chooses among keys by it, and a wait sleeps by it or gives up.
	Retry time.Duration
}

// How is the part of an Outcome without numbers.
type How struct {
	Reason  Reason
	Tier    Tier
	Expired bool // Canceled: the context's deadline passed
}

// Allowed reports whether the request is admitted.
func (h How) Allowed() bool { return Granted <= h.Reason && h.Reason <= Shadowed }

// expired reports whether a context that ended did so by its deadline.
func expired(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// waitHelps reports whether waiting may help.
func (o Outcome) waitHelps() bool {
	return (o.Reason == Limited || o.Reason == FallbackSpent) && o.Retry > 0
}

// byFailMode returns the outcome of a fail mode's verdict.
func byFailMode(p *local.Policy, v local.Verdict) Outcome {
	o := Outcome{p, How{Unavailable, Failover, false}, v.Left, 0}
	switch v.Outcome {
	case local.Admitted: // of the lease
		o.Reason, o.Tier = Granted, Local
	case local.Fallback:
		o.Reason = Fallback
	case local.Opened:
		o.Reason = Open
	case local.FallbackSpent:
		if o.Reason = FallbackSpent; v.Retry < math.MaxInt64 { // otherwise never, while Redis does not answer
			o.Retry = v.Retry
		}
	}
	return o
}

// byRule returns the outcome of a rule, or that of a limit whose burst is too small.
func (b *Bucket) byRule(now time.Duration) Outcome {
	switch p := b.Policy(); p.Rule {
	case local.Unlimited:
		return Outcome{p, How{Granted, Local, false}, 0, 0}
	case local.Blocked:
		return Outcome{p, How{ExceedsBurst, Local, false}, 0, 0}
	}
	return b.refuseForGood(now, ExceedsBurst)
}

// refuseForGood returns a refusal that more tokens could not have prevented. What is left is what this process knows of b.
func (b *Bucket) refuseForGood(now time.Duration, r Reason) Outcome {
	return Outcome{b.Policy(), How{r, None, false}, b.seenLeft(now), 0}
}

// seenLeft returns the tokens that this process holds, and those last seen in Redis.
func (b *Bucket) seenLeft(now time.Duration) int64 {
	held, level := b.Peek(now)
	return min(held+max(level, 0), b.Policy().Cap)
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

// Told is an outcome with what a Decision tells besides: of a request for Key that cost Cost, at Now. Bucket is the key's, nil if
// this process keeps none.
type Told struct {
	Outcome
	Key    string
	Cost   int64
	Bucket *Bucket
	Now    time.Duration

	Carried *Resolved // the limit that the request carries; nil if it carries none

	// What Redis answered, if it was only asked what it would say, as of LastReport.
	Dry   bool
	Limit uint8 // the number of the limit that alone was asked about, from 1; 0 for all
	Which uint8
	Clear time.Duration
}

// Refuse returns the refusal of a request for n tokens that is not valid, and counts it.
func (l *Limiter) Refuse(key string, n int64, r Reason) Told {
	o, b := l.invalid(key, r)
	l.countRequest(o, key, 0)
	t := Told{Outcome: l.tryOut(o, key, 0), Key: key, Cost: n, Bucket: b, Now: l.Group.Now()}
	l.observe(&t)
	return t
}

// observe tells the hook of a request that is counted.
func (l *Limiter) observe(t *Told) {
	if l.mode.Load()&ModeTraced != 0 {
		l.Group.Hooks.Decision(t)
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
