package tiered

import (
	"context"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// turns lets the callers that wait for a key go one after the other. Only the first asks, and it asks for those
// behind too.
type turns struct {
	mu   sync.Mutex
	keys map[local.ID]*waitQueue
}

// waitQueue holds the callers that wait for a key, in the order in which they came. The first has the turn.
type waitQueue struct {
	first, last *standing
	cost        int64 // of all
	asking      int64 // of those that the first asks for at this moment: what they get is not counted yet
	unsure      bool  // a caller came while it was not known whether its deadline can be met

	idleUntil time.Duration // what is left in Redis is for other processes until then
}

// standing is a caller that waits for a key, and its place in the queue.
type standing struct {
	limiter *Limiter
	id      local.ID
	key     string
	cost    int64
	until   time.Duration // its deadline, since the Group's base; forever if it has none
	several bool          // it needs other keys too, so no other caller can take its tokens for it
	asked   bool          // the first has asked for its token: what was granted before it came is not for it

	// What its last call brought, while it is the first.
	more   int64 // tokens that came with its own, for those behind
	short  bool  // Redis left something to others
	active int64 // leases of the bucket by the last call, perhaps of the first before it: see local.Waiter

	since      time.Duration // when it began to wait; 0 before
	next, prev *standing
	events     chan event // capacity 1; nil if it came first
}

// event ends the wait for a turn.
type event struct {
	kind  eventKind
	retry time.Duration // outOfTime: when it could be served
}

// eventKind says how a wait for a turn ended. Only with its turn is the caller still in the queue.
type eventKind uint8

const (
	itsTurn   eventKind = iota
	served              // its tokens were taken for it
	outOfTime           // its deadline cannot be met
	gaveUp              // its context ended
)

// enter waits for the turn of s, or for the end of ctx. Only with its turn is s in the queue when enter returns.
func (t *turns) enter(ctx context.Context, s *standing) event {
	if ctx.Err() != nil {
		return event{kind: gaveUp}
	}
	var b *bucket
	if s.until < forever {
		b = s.bucket()
	}
	t.mu.Lock()
	if t.keys == nil {
		t.keys = make(map[local.ID]*waitQueue)
	}
	q := t.keys[s.id]
	if q == nil {
		t.keys[s.id] = &waitQueue{first: s, last: s, cost: s.cost}
		t.mu.Unlock()
		return event{kind: itsTurn}
	}
	if b != nil {
		retry, known := s.lacksTime(b, q.cost-q.asking+s.cost)
		if retry > 0 {
			t.mu.Unlock()
			return event{outOfTime, retry}
		}
		q.unsure = q.unsure || !known
	}
	s.events = make(chan event, 1)
	q.push(s)
	t.mu.Unlock()
	s.begin()
	select {
	case e := <-s.events:
		return e
	case <-ctx.Done():
	}
	t.mu.Lock()
	select {
	case e := <-s.events: // it came at the same moment
		t.mu.Unlock()
		if e.kind != itsTurn {
			return e
		}
		t.leave(s)
	default:
		q.remove(s) // thousands may leave at once, and all keys need this lock
		t.mu.Unlock()
	}
	return event{kind: gaveUp}
}

// lacksTime reports when n tokens can be there, if that is after the deadline of s, and else 0. known is false if too
// little is known to say. With shards it always returns 0, because each shard has a level of its own.
func (s *standing) lacksTime(b *bucket, n int64) (retry time.Duration, known bool) {
	if s.limiter.shards != nil {
		return 0, true
	}
	now := s.limiter.group.now()
	at, known := b.Earliest(now, n)
	if at <= s.until {
		return 0, known
	}
	return at - now, true
}

// ask notes that the first in the queue asks for its tokens. asked notes that it did not get them.
func (t *turns) ask(s *standing)   { t.asks(s, s.cost) }
func (t *turns) asked(s *standing) { t.asks(s, 0) }

func (t *turns) asks(s *standing, cost int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys[s.id].asking = cost
}

// behind returns how many callers behind s want one token each, at most limit. It counts up to the first that wants
// more: what comes for single tokens is used at once, and tokens for part of a higher cost would lie unused.
func (t *turns) behind(s *standing, limit int64) (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := s.next; w != nil && w.cost == 1 && !w.several && n < limit; w = w.next {
		w.asked = true
		n++
	}
	t.keys[s.id].asking = s.cost + n
	return n
}

// hand gives n tokens to the callers behind s, in turn and one each, and takes them out of the queue. It returns how
// many tokens are left.
func (t *turns) hand(s *standing, n int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.keys[s.id]
	for w := s.next; n > 0 && w != nil && w.asked; w = s.next {
		q.end(w, event{kind: served})
		n--
	}
	q.asking = s.cost
	return n
}

// dropLate takes the callers out of the queue whose deadlines cannot be met, if one came while that was not known. s
// is the first, and was refused.
func (t *turns) dropLate(s *standing) {
	b := s.bucket()
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.keys[s.id]
	if q == nil || q.first != s || !q.unsure {
		return
	}
	q.unsure = false
	front := s.cost
	for w := s.next; w != nil; {
		next := w.next
		if retry, _ := w.lacksTime(b, front+w.cost); retry > 0 {
			q.end(w, event{outOfTime, retry})
		} else {
			front += w.cost
		}
		w = next
	}
}

// idle returns how long the first in the queue leaves what Redis has to other processes before it asks, if it has to
// ask.
func (t *turns) idle(s *standing) time.Duration {
	t.mu.Lock()
	until := t.keys[s.id].idleUntil
	t.mu.Unlock()
	now := s.limiter.group.now()
	if until <= now || s.until < until || s.bucket().Holds(now, s.cost) {
		return 0
	}
	return until - now
}

// busy reports whether a caller has the turn.
func (t *turns) busy(id local.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[id] != nil
}

// leave passes the turn on.
func (t *turns) leave(s *standing) {
	idleUntil := time.Duration(0)
	if s.short {
		idleUntil = s.limiter.group.now() + pace + s.bucket().Yield(s.active)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.keys[s.id]
	q.remove(s)
	q.asking = 0
	q.idleUntil = max(q.idleUntil, idleUntil)
	if q.first == nil {
		delete(t.keys, s.id)
		return
	}
	q.first.active = s.active
	q.first.events <- event{kind: itsTurn}
}

func (q *waitQueue) push(s *standing) {
	s.prev, q.last.next = q.last, s
	q.last = s
	q.cost += s.cost
}

func (q *waitQueue) remove(s *standing) {
	if s.prev == nil {
		q.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		q.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	q.cost -= s.cost
	s.next, s.prev = nil, nil
}

// end takes w, which is not the first, out of the queue and reports why.
func (q *waitQueue) end(w *standing, e event) {
	q.remove(w)
	w.events <- e
}
