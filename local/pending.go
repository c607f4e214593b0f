package local

import (
	"iter"
	"sync"
)

// errand is what a bucket has only while somebody waits or a call is under way.
type pending struct {
	waiters waiters
	resets  []*Waiter
	call    Call // Seq 0 for none
	again   bool // the call was late once, or its reset came to nothing, and it is made once more
}

var pendings = sync.Pool{New: func() any { return new(pending) }}

// run returns the bucket's errand, a new one if there was none.
func (b *Bucket) needPending() *pending {
	if b.pending == nil {
		b.pending = pendings.Get().(*pending)
	}
	return b.pending
}

// settleDown ends the errand if it is done, lets takers in when nobody waits, and then tells those who have their verdict: who
// asks again at once finds the pot open, and is not refused by what was learned with it.
func (b *Bucket) conclude() {
	e := b.pending
	if e == nil {
		b.open()
		return
	}
	decided := e.waiters.decided
	e.waiters.decided, e.waiters.newest = nil, nil
	if e.waiters.n == 0 && len(e.resets) == 0 && e.call.Seq == 0 && !e.again {
		b.pending = nil
		*e = pending{}
		pendings.Put(e)
	}
	b.open()
	decided.deliver()
}

// calling reports whether a call is under way.
func (b *Bucket) calling() bool { return b.pending != nil && b.call.Seq != 0 }

// waiting reports how many are in line.
func (b *Bucket) waiting() int {
	if b.pending == nil {
		return 0
	}
	return b.waiters.n
}

// queue yields those in line, first come first; w may leave.
func (b *Bucket) queue() iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		if b.pending == nil {
			return
		}
		for w := b.waiters.first; w != nil; {
			next := w.next
			if !yield(w) {
				return
			}
			w = next
		}
	}
}
