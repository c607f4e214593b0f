package tiered

import (
	"context"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// turns lets those who wait for a key go one after the other: only the first asks, for those behind it too.
type turns struct {
	mu   sync.Mutex
	keys map[local.ID]*line
}

// line is who waits for a key, in the order in which they came. The first has the turn.
type line struct {
	first, last *standing
	cost        int64 // of all
	asking      int64 // of those for whom the first asks at this moment: what they get is not counted yet
	unsure      bool  // somebody came while nothing told whether its deadline can be met

	rest time.Duration // until then what is left in Redis is for other processes
}

// standing is who waits for a key, and its place in line.
type standing struct {
	limiter *Limiter
	id      local.ID
	key     string
	cost    int64
	until   time.Duration // its deadline, since the Group's base; forever for none
	several bool          // it needs other keys too, so nobody can take its tokens for it
	asked   bool          // the first asked for its token: what was granted before it came is not its

	// Of its last call, while it is the first.
	more   int64 // tokens that came with its own, for those behind
	short  bool  // Redis left something to others
	active int64 // leases of the bucket: see local.Waiter. Or of the last call of who was the first before

	since      time.Duration // when it began to wait; 0 before
	next, prev *standing
	told       chan news // capacity 1; nil for who came first
}

// news is what becomes of who waits for its turn.
type news struct {
	event event
	retry time.Duration // outOfTime: when it could be served
}

type event uint8

const (
	itsTurn   event = iota
	served          // its tokens were taken for it; it is not in line any more
	outOfTime       // its deadline cannot be met; nor is this
	calledOff       // its context ended; nor is this
)

// enter waits for the turn of s, or for the end of ctx. Only with its turn is s in line when it returns.
func (t *turns) enter(ctx context.Context, s *standing) news {
	if ctx.Err() != nil {
		return news{event: calledOff}
	}
	var b *bucket
	if s.until < forever {
		b = s.bucket()
	}
	t.mu.Lock()
	if t.keys == nil {
		t.keys = make(map[local.ID]*line)
	}
	q := t.keys[s.id]
	if q == nil {
		t.keys[s.id] = &line{first: s, last: s, cost: s.cost}
		t.mu.Unlock()
		return news{event: itsTurn}
	}
	if b != nil {
		retry, known := s.lacksTime(b, q.cost-q.asking+s.cost)
		if retry > 0 {
			t.mu.Unlock()
			return news{outOfTime, retry}
		}
		q.unsure = q.unsure || !known
	}
	s.told = make(chan news, 1)
	q.push(s)
	t.mu.Unlock()
	s.begin()
	select {
	case e := <-s.told:
		return e
	case <-ctx.Done():
	}
	t.mu.Lock()
	select {
	case e := <-s.told: // it came at the same moment
		t.mu.Unlock()
		if e.event != itsTurn {
			return e
		}
		t.leave(s)
	default:
		q.remove(s) // thousands may leave at once, and all keys wait for this lock
		t.mu.Unlock()
	}
	return news{event: calledOff}
}

// lacksTime reports, if n tokens cannot be there before the deadline of s, when they can; else 0. known is false where
// too little is known to tell. Of shards nothing is: each has a level of its own.
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

// ask notes that the first in line asks for its tokens, and asked that it did not get them.
func (t *turns) ask(s *standing)   { t.asks(s, s.cost) }
func (t *turns) asked(s *standing) { t.asks(s, 0) }

func (t *turns) asks(s *standing, cost int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys[s.id].asking = cost
}

// behind reports how many stand behind s, most at most, before the first who wants more than one token: whatever comes
// for them is used. What a dear request waits for would lie about.
func (t *turns) behind(s *standing, most int64) (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := s.next; w != nil && w.cost == 1 && !w.several && n < most; w = w.next {
		w.asked = true
		n++
	}
	t.keys[s.id].asking = s.cost + n
	return n
}

// hand takes those out of line, in turn, whom n tokens serve: one each. It reports how many tokens are left.
func (t *turns) hand(s *standing, n int64) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.keys[s.id]
	for w := s.next; n > 0 && w != nil && w.asked; w = s.next {
		q.tell(w, news{event: served})
		n--
	}
	q.asking = s.cost
	return n
}

// reckon takes those out of line whose deadlines cannot be met, if somebody came before there was an answer to tell by.
// s is the first, and was refused.
func (t *turns) reckon(s *standing) {
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
			q.tell(w, news{outOfTime, retry})
		} else {
			front += w.cost
		}
		w = next
	}
}

// resting is how long the first in line leaves what Redis has to other processes before it asks, if it has to ask.
func (t *turns) resting(s *standing) time.Duration {
	t.mu.Lock()
	rest := t.keys[s.id].rest
	t.mu.Unlock()
	now := s.limiter.group.now()
	if rest <= now || s.until < rest || s.bucket().Holds(now, s.cost) {
		return 0
	}
	return rest - now
}

// busy reports whether anybody has the turn.
func (t *turns) busy(id local.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.keys[id] != nil
}

// leave passes the turn on.
func (t *turns) leave(s *standing) {
	rest := time.Duration(0)
	if s.short {
		rest = s.limiter.group.now() + pace + s.bucket().Turn(s.active)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.keys[s.id]
	q.remove(s)
	q.asking = 0
	q.rest = max(q.rest, rest)
	if q.first == nil {
		delete(t.keys, s.id)
		return
	}
	q.first.active = s.active
	q.first.told <- news{event: itsTurn}
}

func (q *line) push(s *standing) {
	s.prev, q.last.next = q.last, s
	q.last = s
	q.cost += s.cost
}

func (q *line) remove(s *standing) {
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

// tell takes w, which is not the first, out of line and tells it why.
func (q *line) tell(w *standing, e news) {
	q.remove(w)
	w.told <- e
}
