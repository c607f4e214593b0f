package sim

import (
	"slices"
	"testing"
	"time"
)

// A tape tells in the order of time, what was so at one time in the order of telling; no tape tells at once.
func TestTape(t *testing.T) {
	var got []string
	tell := func(tape *tape, at time.Duration, what string) { tape.add(at, func() { got = append(got, what) }) }
	tell(nil, 3, "at once")
	x := &tape{}
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
