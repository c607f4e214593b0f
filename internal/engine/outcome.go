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
	Left int64 // tokens, with those of a standing share; for some reasons 0; negative if a refusal is of a key that owes

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

// kindOf are the kinds as which requests of each Reason count.
var kindOf = [...]report.Kind{
	Granted: report.Granted, Fallback: report.Fallback, Open: report.Open, Shadowed: report.Shadowed, Limited: report.Limited,
	FallbackSpent: report.FallbackSpent, Unavailable: report.Unavailable, ExceedsBurst: report.ExceedsBurst,
	InvalidKey: report.Invalid, InvalidCost: report.Invalid, Canceled: report.Canceled,
}

// kind returns the kind of an outcome.
func (o Outcome) kind() report.Kind {
	switch {
	case o.Reason == Granted && o.Policy.Rule == local.Unlimited:
		return report.Unlimited
	case o.Reason == ExceedsBurst && o.Policy.Rule == local.Blocked && o.Tier == Local: // not one that no limit would admit
		return report.Blocked
	}
	return kindOf[o.Reason]
}

// byRedis returns the kind as which an outcome by Redis counts besides.
func (o Outcome) byRedis() (report.Kind, bool) {
	if o.Tier == Remote && o.Reason == Limited {
		return report.LimitedByRedis, true
	}
	return report.GrantedByRedis, o.Tier == Remote && o.Reason == Granted
}
