package local

import "time"

// Outcome is what a request came to, as far as the bucket can say.
type Outcome uint8

// The outcomes.
const (
	Admitted   Outcome = iota + 1
	Refused            // the limit says no
	Failed             // Redis did not answer: Bucket.Alone decides by the fail mode; or it has, and admits nothing
	Waiting            // the verdict comes through Waiter.C
	Gone               // this bucket is closed: look the key up again
	Shared             // admitted by the share
	ShareSpent         // refused by the share
	Opened             // admitted by fail-open
)

// Verdict is the answer to one request.
type Verdict struct {
	Outcome Outcome
	Left    int64         // tokens held here and believed to be in Redis, after this request
	Retry   time.Duration // Refused, ShareSpent: when it may be admitted, > 0
	Stamp   *Stamp        // Admitted, unless the policy just refills: what the tokens were counted by, or earlier
}

// Waiter is a request that waits in a bucket's line. It may be used again once it has left the line and C is empty.
type Waiter struct {
	C     chan Verdict // capacity 1: a verdict never blocks the bucket
	Quiet bool         // set before it is used: see Bucket.Quiet

	// Patient says that whoever is refused waits and asks again. It does not hold off, and its refusals count neither as
	// refused nor as demand. The owner sets this before Ask, and More.
	Patient bool
	More    int64 // besides, tokens for others, who want one each: they are in the pot afterwards, or have come with its own

	// What a patient waiter is told besides the verdict.
	Came   int64 // tokens of More that came with its own
	Short  bool  // Redis granted less than was asked for, for others want it too
	Active int64 // leases of the bucket that hold or want tokens, this process' too, by the reply

	cost       int64
	more       int64         // of More, what the call under way asks for
	until      time.Duration // not wanted from here on
	asked      bool          // the call under way is for it
	prev, next *Waiter
	in         *waiters
	verdict    Verdict // once it has left, until it is told
}

// NewWaiter returns a waiter.
func NewWaiter() *Waiter { return &Waiter{C: make(chan Verdict, 1)} }

// line is a first-in-first-out list of waiters, with O(1) removal from the middle. The zero value is empty.
type waiters struct {
	first, last *Waiter
	n           int

	decided, newest *Waiter // those who have their verdict and do not know it yet, in order, by next
}

func (l *waiters) join(w *Waiter) {
	w.in, w.prev, w.next = l, l.last, nil
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.n++
}

func (l *waiters) leave(w *Waiter) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	l.n--
	w.in, w.prev, w.next, w.asked = nil, nil, nil, false
}

// end gives w its verdict and takes it out of line. It is told by tell.
func (l *waiters) end(w *Waiter, v Verdict) {
	l.leave(w)
	w.verdict = v
	if l.decided == nil {
		l.decided = w
	} else {
		l.newest.next = w
	}
	l.newest = w
}

// tell tells verdicts, from w on.
func (w *Waiter) deliver() {
	for w != nil {
		next := w.next
		w.next = nil // from here on it is its caller's
		w.C <- w.verdict
		w = next
	}
}
