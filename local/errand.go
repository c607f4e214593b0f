package local

import (
	"iter"
	"sync"
)

// errand is what a bucket has only while somebody waits or a call is under way.
type errand struct {
	line   line
	resets []*Waiter
	call   Call // Seq 0 for none
	late   bool // the call was late once, or its reset came to nothing, and it is made once more
}

var errands = sync.Pool{New: func() any { return new(errand) }}

// run returns the bucket's errand, a new one if there was none.
func (b *Bucket) run() *errand {
	if b.errand == nil {
		b.errand = errands.Get().(*errand)
	}
	return b.errand
}

// settleDown ends the errand if it is done, lets takers in when nobody waits, and then tells those who have their verdict: who
// asks again at once finds the pot open, and is not refused by what was learned with it.
func (b *Bucket) settleDown() {
	e := b.errand
	if e == nil {
		b.open()
		return
	}
	decided := e.line.decided
	e.line.decided, e.line.newest = nil, nil
	if e.line.n == 0 && len(e.resets) == 0 && e.call.Seq == 0 && !e.late {
		b.errand = nil
		*e = errand{}
		errands.Put(e)
	}
	b.open()
	decided.tell()
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
