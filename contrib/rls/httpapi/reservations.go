package httpapi

import (
	"container/list"
	"crypto/rand"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key has up to 64 kB, so the reservations are bounded in bytes too: all together, and one by a
// part of what is free, so that a few large ones leave room for the others. Keys of 64 kB have room
// for one at least.
const (
	reservationBytes = 400 // of one, without its uses
	useBytes         = 200 // of a use, without its key
	roomBytes        = 1 << 10
	leastRoom        = 1 << 20
	partOfFree       = 128
	leastPart        = 64<<10 + 1<<10
)

// reservations are those that can be settled. Each is kept for the same time, so the oldest ends
// first. There is no goroutine: who opens or takes one removes what has ended.
type reservations struct {
	most int
	life time.Duration

	mu   sync.Mutex
	free int // bytes
	byID map[string]*list.Element
	ages *list.List // of *open, oldest first
}

// open is a reservation that can be settled.
type open struct {
	id     string
	ends   time.Time
	tokens tiered.Reservation
	uses   int
	bytes  int
}

func newReservations(most int, life time.Duration) *reservations {
	return &reservations{
		most: most, life: life, free: max(most*roomBytes, leastRoom), byID: map[string]*list.Element{}, ages: list.New(),
	}
}

// open makes a place for a reservation. It reports false if there is no room. The id cannot be
// guessed: who has it may settle.
func (r *reservations) open(now time.Time, uses, bytes int) (id string, ok bool) {
	id = rand.Text()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(now)
	if len(r.byID) >= r.most || bytes > min(r.free, max(r.free/partOfFree, leastPart)) {
		return "", false
	}
	r.free -= bytes
	r.byID[id] = r.ages.PushBack(&open{id: id, ends: now.Add(r.life), uses: uses, bytes: bytes})
	return id, true
}

// keep puts the tokens of a reservation into its place.
func (r *reservations) keep(id string, t tiered.Reservation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		e.Value.(*open).tokens = t
	}
}

// take returns a reservation and how many uses it has, 0 if it is not here. If it has as many as
// the caller says, it is removed.
func (r *reservations) take(now time.Time, id string, uses int) (t tiered.Reservation, has int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(now)
	if e := r.byID[id]; e != nil {
		is := e.Value.(*open)
		if t, has = is.tokens, is.uses; has == uses {
			r.drop(e)
		}
	}
	return t, has
}

// remove removes a reservation.
func (r *reservations) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.byID[id]; e != nil {
		r.drop(e)
	}
}

// end removes what has ended. Its tokens are spent.
func (r *reservations) end(now time.Time) {
	for e := r.ages.Front(); e != nil && !e.Value.(*open).ends.After(now); e = r.ages.Front() {
		r.drop(e)
	}
}

func (r *reservations) drop(e *list.Element) {
	is := r.ages.Remove(e).(*open)
	r.free += is.bytes
	delete(r.byID, is.id)
}
