// Package fifo is a first-in-first-out queue. Its members may leave from the middle, in O(1), and
// nothing allocates.
package fifo

// Queue holds places in the order in which they joined. The zero value is empty. It is not safe for
// concurrent use.
type Queue[T any] struct {
	first, last *Place[T]
	n           int // invariant: the number of places from first to last
}

// Place is a place in at most one queue. Its member has it as a field.
type Place[T any] struct {
	Member     T
	prev, next *Place[T]
}

// Len returns how many places there are.
func (q *Queue[T]) Len() int { return q.n }

// First returns the first place, or nil.
func (q *Queue[T]) First() *Place[T] { return q.first }

// Next returns the place behind p, or nil.
func (p *Place[T]) Next() *Place[T] { return p.next }

// Join appends p, which is in no queue.
func (q *Queue[T]) Join(p *Place[T]) {
	if p.prev = q.last; p.prev == nil {
		q.first = p
	} else {
		p.prev.next = p
	}
	q.last = p
	q.n++
}

// Leave takes p out, which is in q.
func (q *Queue[T]) Leave(p *Place[T]) {
	if p.prev == nil {
		q.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		q.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	q.n--
	p.prev, p.next = nil, nil
}
