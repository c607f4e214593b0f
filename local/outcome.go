package local

import (
	"time"
)

// Reason says why a request was admitted or refused. tiered.Reason has the same values, and says
// what they mean.
type Reason uint8

// The reasons. Granted, Fallback, Open and Shadowed admit. The last two are not told: they pass
// between a bucket and its owner only.
const (
	Unknown Reason = iota
	Granted
	Fallback
	Open
	Shadowed
	Limited
	FallbackSpent
	Unavailable // of Bucket.Ask: Redis did not answer, and Bucket.ByFailMode is to decide
	ExceedsBurst
	InvalidKey
	InvalidCost
	Canceled

	Waiting  // the outcome comes through Waiter.C
	Outdated // this bucket is closed, or its rule has changed: look the key up again
)

// Tier says where a request was decided: in this process, by Redis, by the fail mode, or nowhere.
// tiered.Tier has the same values.
type Tier uint8

// The tiers.
const (
	Nowhere Tier = iota
	Local
	Remote
	Failover
)

// An Outcome is how a request for one key was decided. Whatever decides returns one.
//
// It goes up in registers, because the compiler keeps a struct there that has at most four fields,
// as its own have, and 32 bytes. With one field more a decision costs half as much again, and as
// much with a Decision in its place.
type Outcome struct {
	Policy *Policy // that decided; nil if nothing did
	How
	Left int64 // tokens here and in Redis, as last seen; for some reasons 0; negative if a refusal is of a key that owes

	// Retry is the time until the tokens can be there; 0 for never. denial.go and fallback.go
	// compute it. Three read it: the Decision reports it, a request for several keys chooses the
	// one that refuses for longest, and a wait sleeps by it or gives up.
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

// WaitHelps reports whether waiting may help.
func (o Outcome) WaitHelps() bool {
	return (o.Reason == Limited || o.Reason == FallbackSpent) && o.Retry > 0
}

// Decided makes an Outcome.
func Decided(p *Policy, r Reason, t Tier, left int64, retry time.Duration) Outcome {
	return Outcome{p, How{r, t, false}, left, retry}
}

// because is an outcome that is only a reason.
func because(r Reason) Outcome { return Outcome{How: How{Reason: r}} }

// Source says where admitted tokens came from, and so where they go when they are given back.
type Source uint8

// The sources.
const (
	FromLease    Source = iota // the pot
	FromRedis                  // a direct take, or a lease that a reply brought
	FromFallback               // nowhere: Redis did not answer
)

// Stamp is when Redis counted tokens, on the bucket's own clock. A call that gives them back names
// it.
type Stamp struct {
	at, epoch int64
	cost      int64 // of a log's entry, what it should cost
	owed      int64 // part of the entry's tokens that is given back and not settled yet
}

// Effect is what the owner has to do after a step.
type Effect struct {
	Send  bool          // put the bucket into its node's queue
	Check time.Duration // call Bucket.Check no later than then; 0 for never
	Done  bool          // the bucket is retired and owes nothing: Cache.Forget it
}
