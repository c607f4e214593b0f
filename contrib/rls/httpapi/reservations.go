package httpapi

import (
	"container/list"
	"crypto/rand"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// reservations are those that can be settled. Each is kept for the same time, so the oldest ends first. There is no
// goroutine: who opens or takes one removes what has ended.
type reservations struct {
	most int
	life time.Duration

	mu   sync.Mutex
	byID map[string]*list.Element
	ages *list.List // of *open, oldest first
}

// open is a reservation that can be settled.
type open struct {
	id     string
	ends   time.Time
	tokens tiered.Reservation
}

func newReservations(most int, life time.Duration) *reservations {
	return &reservations{most: most, life: life, byID: map[string]*list.Element{}, ages: list.New()}
}

// open makes a place for a reservation. It reports false if there are too many. The id cannot be guessed: who has it
// may settle.
func (r *reservations) open(now time.Time) (id string, ok bool) {
	id = rand.Text()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(now)
	if len(r.byID) >= r.most {
		return "", false
	}
	r.byID[id] = r.ages.PushBack(&open{id: id, ends: now.Add(r.life)})
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

// take removes a reservation and returns it. It reports false if it is not here.
func (r *reservations) take(now time.Time, id string) (t tiered.Reservation, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(now)
	if e := r.byID[id]; e != nil {
		t, ok = e.Value.(*open).tokens, true
		r.drop(e)
	}
	return t, ok
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
	delete(r.byID, r.ages.Remove(e).(*open).id)
}
