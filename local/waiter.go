package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
)

// Waiter is a request that waits for a reply. It may be used again once it has its outcome or has
// left, and C is empty.
type Waiter struct {
	C chan Outcome // capacity 1: an outcome never blocks the bucket

	// AskAgain says that the caller waits and asks again when it is refused. Such a waiter sets no
	// hold-off, and its refusals count neither as refused nor as demand. The owner sets it before
	// Ask, and the next two.
	AskAgain bool
	Well     bool  // the node has answered its last call
	More     int64 // tokens wanted besides, for others who want one each

	// What a waiter that asks again learns besides the outcome.
	Stamp       *Stamp // of Granted, unless the policy just refills: when the tokens were counted, or earlier
	MoreGranted int64  // of More, tokens that came with its own. The rest may be in the pot
	Short       bool   // Redis granted less than was asked for, because others want it too
	Active      int64  // leases of the bucket that hold or want tokens, with this process' own, by the reply

	cost    int64
	more    int64         // of More, what the call under way asks for
	since   time.Duration // it came then
	until   time.Duration // the caller gives up then
	asked   bool          // the call under way is for it
	waits   bool          // it has a place among those who wait
	place   fifo.Place[*Waiter]
	outcome Outcome // from when it is decided until it is delivered
}

// NewWaiter returns a waiter.
func NewWaiter() *Waiter {
	w := &Waiter{C: make(chan Outcome, 1)}
	w.place.Member = w
	return w
}

// hurried reports whether w never waits for as long as an answer takes.
func (w *Waiter) hurried(answer time.Duration) bool { return w.until-w.since <= answer }

// refusal asks a denial for a waiter: refuses, or lacks for one that waits and asks again.
func (w *Waiter) refusal(d *denial, now time.Duration, need int64) (retry time.Duration, refused bool) {
	if w.AskAgain {
		return d.lacks(now, need)
	}
	return d.refuses(now, need)
}
