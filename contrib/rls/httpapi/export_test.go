package httpapi

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
)

// OpenReservations returns a function that opens a reservation of so many bytes, and reports
// whether there was room: a hundred megabytes of requests would take seconds.
func OpenReservations(most int, life time.Duration) func(bytes int) bool {
	r := newReservations(most, life)
	return func(bytes int) bool {
		_, ok := r.open(time.Now(), 1, bytes)
		return ok
	}
}

const (
	LeastPart  = leastPart
	RoomBytes  = roomBytes
	LargestUse = reservationBytes + useBytes + defaults.MaxKeyLength
)
