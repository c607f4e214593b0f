package local

import (
	"iter"
	"sync"
	"time"
)

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
}

// Waiter is a request that waits in a bucket's line. It may be used again once it has left the line and C is empty.
type Waiter struct {
	C chan Verdict // capacity 1: a verdict never blocks the bucket

	cost       int64
	until      time.Duration // not wanted from here on
	asked      bool          // the call under way is for it
	prev, next *Waiter
	in         *line
}

// NewWaiter returns a waiter.
func NewWaiter() *Waiter { return &Waiter{C: make(chan Verdict, 1)} }

// line is a first-in-first-out list of waiters, with O(1) removal from the middle. The zero value is empty.
type line struct {
	first, last *Waiter
	n           int
}

func (l *line) join(w *Waiter) {
	w.in, w.prev, w.next = l, l.last, nil
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	l.n++
}

func (l *line) leave(w *Waiter) {
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

// end gives w its verdict and takes it out of line.
func (l *line) end(w *Waiter, v Verdict) {
	l.leave(w)
	w.C <- v
}

// errand is what a bucket has only while somebody waits or a call is under way.
type errand struct {
	line   line
	resets []*Waiter
	call   Call // Seq 0 for none
	late   bool // the call was late once and is made once more
}

var errands = sync.Pool{New: func() any { return new(errand) }}

// run returns the bucket's errand, a new one if there was none.
func (b *Bucket) run() *errand {
	if b.errand == nil {
		b.errand = errands.Get().(*errand)
	}
	return b.errand
}

// settleDown ends the errand if it is done, and lets takers in when nobody waits.
func (b *Bucket) settleDown() {
	if e := b.errand; e != nil && e.line.n == 0 && len(e.resets) == 0 && e.call.Seq == 0 && !e.late {
		b.errand = nil
		*e = errand{}
		errands.Put(e)
	}
	b.open()
}

// calling reports whether a call is under way.
func (b *Bucket) calling() bool { return b.errand != nil && b.call.Seq != 0 }

// waiting reports how many are in line.
func (b *Bucket) waiting() int {
	if b.errand == nil {
		return 0
	}
	return b.line.n
}

// queue yields those in line, first come first; w may leave.
func (b *Bucket) queue() iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		if b.errand == nil {
			return
		}
		for w := b.line.first; w != nil; {
			next := w.next
			if !yield(w) {
				return
			}
			w = next
		}
	}
}
