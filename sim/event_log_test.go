package sim

import (
	"slices"
	"testing"
	"time"
)

// A log plays its events by time, and those of one time in the order in which they were added. A nil log runs them
// at once.
func TestEventLog(t *testing.T) {
	var got []string
	tell := func(log *eventLog, at time.Duration, what string) { log.add(at, func() { got = append(got, what) }) }
	tell(nil, 3, "at once")
	x := &eventLog{}
	tell(x, 2, "second")
	tell(x, 1, "first")
	tell(x, 2, "third")
	if want := []string{"at once"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	x.play()
	x.play()
	if want := []string{"at once", "first", "second", "third"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
