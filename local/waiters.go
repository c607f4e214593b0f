package local

import (
	"time"
)

// join appends w.
func (q *waiters) join(w *Waiter) {
	w.in, w.prev, w.next = q, q.last, nil
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

// leave takes w out.
func (q *waiters) leave(w *Waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	q.n--
	w.in, w.prev, w.next, w.asked = nil, nil, nil, false
}

// decide takes w out with an outcome, which [Bucket.deliver] delivers.
func (q *waiters) decide(w *Waiter, v Outcome) {
	q.leave(w)
	w.outcome = v
	if q.decided == nil {
		q.decided = w
	} else {
		q.lastDecided.next = w
	}
	q.lastDecided = w
}

// takeDecided takes out those who have an outcome, linked by next.
func (q *waiters) takeDecided() *Waiter {
	w := q.decided
	q.decided, q.lastDecided = nil, nil
	return w
}

// deliver sends the outcomes of w and of those linked behind it.
func (w *Waiter) deliver() {
	for w != nil {
		next := w.next
		w.next = nil // once it has its outcome it belongs to its caller
		w.C <- w.outcome
		w = next
	}
}

// Waiter is a request that waits for a reply. It may be used again once it has its outcome or has left, and C is empty.
type Waiter struct {
	C chan Outcome // capacity 1: an outcome never blocks the bucket

	// AskAgain says that the caller waits and asks again when it is refused. Such a waiter sets no hold-off, and its
	// refusals count neither as refused nor as demand. The owner sets it before Ask, and More.
	AskAgain bool
	More     int64 // tokens wanted besides, for others who want one each

	// What a waiter that asks again learns besides the outcome.
	Stamp       *Stamp // of Granted, unless the policy just refills: when the tokens were counted, or earlier
	MoreGranted int64  // of More, tokens that came with its own. The rest may be in the pot
	Short       bool   // Redis granted less than was asked for, because others want it too
	Active      int64  // leases of the bucket that hold or want tokens, with this process' own, by the reply

	cost       int64
	more       int64         // of More, what the call under way asks for
	since      time.Duration // it came then
	until      time.Duration // the caller gives up then
	asked      bool          // the call under way is for it
	prev, next *Waiter
	in         *waiters
	outcome    Outcome // from when it is decided until it is delivered
}

// NewWaiter returns a waiter.
func NewWaiter() *Waiter { return &Waiter{C: make(chan Outcome, 1)} }

// hurried reports whether w never waits for as long as an answer takes.
func (w *Waiter) hurried(answer time.Duration) bool { return w.until-w.since <= answer }

// refusal asks a denial for a waiter: refuses, or lacks for one that waits and asks again.
func (w *Waiter) refusal(d *denial, now time.Duration, need int64) (retry time.Duration, refused bool) {
	if w.AskAgain {
		return d.lacks(now, need)
	}
	return d.refuses(now, need)
}

// waiters is a first-in-first-out queue with removal from the middle in O(1). The zero value is empty.
type waiters struct {
	first, last *Waiter
	n           int // invariant: the number of waiters from first to last

	// Those who have an outcome that is not delivered yet, in order, linked by next. Invariant: none of them is in the
	// queue.
	decided, lastDecided *Waiter
}
