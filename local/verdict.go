package local

import (
	"time"
)

// Outcome is what a request came to, as far as the bucket can say.
type Outcome uint8

// The outcomes.
const (
	Admitted      Outcome = iota + 1
	Refused               // the limit says no
	Failed                // Redis did not answer, and Bucket.Fallback decides; or Bucket.Fallback did, and admits nothing
	Waiting               // the verdict comes through Waiter.C
	Outdated              // this bucket is closed, or its rule has changed: look the key up again
	Fallback              // admitted by the fallback
	FallbackSpent         // refused by the fallback
	Opened                // admitted by fail-open
)

// Verdict is the answer to one request.
type Verdict struct {
	Outcome Outcome
	Left    int64         // tokens held here and believed to be in Redis, after this request; negative: of Refused, what is owed
	Retry   time.Duration // of Refused and FallbackSpent: when it may be admitted, > 0
	Stamp   *Stamp        // of Admitted, unless the policy just refills: when the tokens were counted, or earlier
}

// Source says where admitted tokens came from, and so where they go when they are given back.
type Source uint8

// The sources.
const (
	FromLease    Source = iota // the pot
	FromRedis                  // a direct take, or a lease that a reply brought
	FromFallback               // nowhere: Redis did not answer
)

// Stamp is when Redis counted tokens, on the bucket's own clock. A call that gives them back names it.
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
