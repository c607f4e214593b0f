package engine

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
	"github.com/tiered-limiter/tiered-limiter/local"
)

// forever is the deadline of a caller that has none.
const forever = time.Duration(math.MaxInt64)

// minIdle is the shortest time for which a process leaves what Redis has to other processes after a
// grant that was short. Tokens that come faster are asked for together: all waiters of a key in a
// process make at most 200 calls per second.
const minIdle = 5 * time.Millisecond

// waitQueues holds a queue for each key that callers wait for. The callers of a key go one after
// the other. Only the first of them asks Redis, and it asks for those behind it too.
type waitQueues struct {
	mu     sync.Mutex
	queues map[local.ID]*waitQueue
}

// waitQueue holds the callers that wait for a key, in the order in which they came. The first has
// the turn.
type waitQueue struct {
	line   fifo.Queue[*queuedCaller]
	cost   int64 // of all
	asking int64 // of those that the first asks for at this moment: what they get is not counted yet
	unsure bool  // when a caller came, it was not known whether its deadline can be met

	idleUntil time.Duration // until then, the tokens in Redis are left to other processes
}

// queuedCaller is a caller that waits for a key, and its place in the queue.
type queuedCaller struct {
	limiter *Limiter
	id      local.ID
	key     string
	cost    int64
	until   time.Duration // its deadline, since the Group's base; forever if it has none
	several bool          // it needs other keys too, so no other caller can take its tokens for it
	asked   bool          // the first has asked for its token too

	// What its last call brought, while it is the first.
	more   int64 // tokens that came with its own, for those behind
	short  bool  // Redis left something to others
	active int64 // leases of the bucket by the last call, perhaps of the first before it: see local.Waiter

	// What it has reserved, while it is the first: see reserve.
	reserved *Bucket
	yields   bool          // it reserves nothing at present, though it waits
	due      time.Duration // when its tokens should be there, as was said when that began
	lack     time.Duration // how long that was

	since  time.Duration // when it began to wait; 0 before
	place  fifo.Place[*queuedCaller]
	events chan event // capacity 1; nil if it came first
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

// enter waits until it is c's turn, or until ctx ends. When enter returns, c is in the queue only
// if it has the turn.
func (qs *waitQueues) enter(ctx context.Context, c *queuedCaller) event {
	if ctx.Err() != nil {
		return event{kind: gaveUp}
	}
	var b *Bucket
	if c.until < forever {
		b = c.bucket()
	}
	qs.mu.Lock()
	if qs.queues == nil {
		qs.queues = make(map[local.ID]*waitQueue)
	}
	q := qs.queues[c.id]
	if q == nil {
		q = new(waitQueue)
		qs.queues[c.id] = q
		q.push(c)
		qs.mu.Unlock()
		return event{kind: itsTurn}
	}
	if b != nil {
		retry, known := c.lacksTime(b, q.cost-q.asking+c.cost)
		if retry > 0 {
			qs.mu.Unlock()
			return event{outOfTime, retry}
		}
		q.unsure = q.unsure || !known
	}
	c.events = make(chan event, 1)
	q.push(c)
	qs.mu.Unlock()
	c.beginWait()
	select {
	case e := <-c.events:
		return e
	case <-ctx.Done():
	}
	qs.mu.Lock()
	select {
	case e := <-c.events: // it came at the same moment
		qs.mu.Unlock()
		if e.kind != itsTurn {
			return e
		}
		qs.leave(c)
	default:
		q.remove(c) // thousands may leave at once, and all keys need this lock
		qs.mu.Unlock()
	}
	return event{kind: gaveUp}
}

// lacksTime returns how long it takes until n tokens can be there, if that is after the deadline of
// c. Otherwise it returns 0. known is false if too little is known to say.
func (c *queuedCaller) lacksTime(b *Bucket, n int64) (retry time.Duration, known bool) {
	now := c.limiter.Group.Now()
	n -= b.share().gains(now, c.until) // those before c take from the share too
	at, known := b.Earliest(now, max(n, 0))
	if at <= c.until {
		return 0, known
	}
	return at - now, true
}

// startAsking notes that the first in the queue asks for its tokens, and stopAsking that it did not
// get them.
func (qs *waitQueues) startAsking(c *queuedCaller) { qs.setAsking(c, c.cost) }
func (qs *waitQueues) stopAsking(c *queuedCaller)  { qs.setAsking(c, 0) }

func (qs *waitQueues) setAsking(c *queuedCaller, cost int64) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.queues[c.id].asking = cost
}

// askForOthers returns how many callers behind c want one token each, at most limit. It stops at
// the first caller that wants more tokens, because a part of its cost would lie unused.
func (qs *waitQueues) askForOthers(c *queuedCaller, limit int64) (n int64) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for w := c.behind(); w != nil && w.cost == 1 && !w.several && n < limit; w = w.behind() {
		w.asked = true
		n++
	}
	qs.queues[c.id].asking = c.cost + n
	return n
}

// handOut gives n tokens to the callers behind c, one token each, and removes those callers from
// the queue. It returns how many tokens are left.
func (qs *waitQueues) handOut(c *queuedCaller, n int64) int64 {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.queues[c.id]
	for w := c.behind(); n > 0 && w != nil && w.asked; w = c.behind() {
		q.end(w, event{kind: served})
		n--
	}
	q.asking = c.cost
	return n
}

// dropLate removes the callers whose deadlines cannot be met, if one came while that was not known.
// c is the first, and was refused.
func (qs *waitQueues) dropLate(c *queuedCaller) {
	b := c.bucket()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.queues[c.id]
	if q == nil || q.line.First() != &c.place || !q.unsure {
		return
	}
	q.unsure = false
	front := c.cost
	for w := c.behind(); w != nil; {
		next := w.behind()
		if retry, _ := w.lacksTime(b, front+w.cost); retry > 0 {
			q.end(w, event{outOfTime, retry})
		} else {
			front += w.cost
		}
		w = next
	}
}

// idleTime returns how long the first in the queue waits before it asks Redis, so that other
// processes get what Redis has. It returns 0 if the lease holds the tokens.
func (qs *waitQueues) idleTime(c *queuedCaller) time.Duration {
	qs.mu.Lock()
	until := qs.queues[c.id].idleUntil
	qs.mu.Unlock()
	now := c.limiter.Group.Now()
	if until <= now || c.until < until || c.bucket().Hot().Holds(now, c.cost) {
		return 0
	}
	return until - now
}

// want returns how many tokens all callers in c's queue want.
func (qs *waitQueues) want(c *queuedCaller) int64 {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.queues[c.id].cost
}

// hasCallers reports whether a caller waits for the key.
func (qs *waitQueues) hasCallers(id local.ID) bool {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	return qs.queues[id] != nil
}

// leave passes the turn on.
func (qs *waitQueues) leave(c *queuedCaller) {
	idleUntil := time.Duration(0)
	if c.short {
		idleUntil = c.limiter.Group.Now() + minIdle + c.bucket().Hot().Yield(c.active)
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	q := qs.queues[c.id]
	q.remove(c)
	q.asking = 0
	q.idleUntil = max(q.idleUntil, idleUntil)
	if q.line.Len() == 0 {
		delete(qs.queues, c.id)
		return
	}
	first := q.line.First().Member
	first.active = c.active
	first.events <- event{kind: itsTurn}
}

func (q *waitQueue) push(c *queuedCaller) {
	c.place.Member = c
	q.line.Join(&c.place)
	q.cost += c.cost
}

func (q *waitQueue) remove(c *queuedCaller) {
	q.line.Leave(&c.place)
	q.cost -= c.cost
}

// behind returns the caller behind c, or nil.
func (c *queuedCaller) behind() *queuedCaller {
	if next := c.place.Next(); next != nil {
		return next.Member
	}
	return nil
}

// end removes c, which is not the first, and tells it why.
func (q *waitQueue) end(c *queuedCaller, e event) {
	q.remove(c)
	c.events <- e
}

// bucket returns the key's bucket.
func (c *queuedCaller) bucket() *Bucket {
	g := c.limiter.Group
	return g.find(g.Now(), c.limiter.ID(c.key))
}

// beginWait counts that c has to wait, once.
func (c *queuedCaller) beginWait() {
	if c.since == 0 {
		c.since = max(c.limiter.Group.Now(), 1)
		c.limiter.Waits.Begin()
	}
}
