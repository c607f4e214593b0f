package benchmarks

import (
	"testing"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestWalks(t *testing.T) {
	w := newWalk(100_000, 1)
	if again := newWalk(100_000, 1); w.ids[0] != again.ids[0] || w.ids[steps-1] != again.ids[steps-1] {
		t.Error("the same seed gives another walk")
	}
	for i, key := range w.keys {
		if len(key) != keySize || key != keyOf(w.ids[i]) {
			t.Fatalf("step %d of key %d asks for %q", i, w.ids[i], key)
		}
	}
	if n := distinct([]*walk{w}, 100_000); n != 0 {
		t.Errorf("%d keys were come by before the first step", n)
	}
	w.made = len(w.keys)
	if n := distinct([]*walk{w, w}, 100_000); n < 25_000 || n > 31_000 { // 100 000·(1 − e^−0.328) = 27 900 expected
		t.Errorf("%d different keys in %d steps", n, steps)
	}
	if w := newWalk(1, 1); len(w.keys) != hotCopies || w.keys[0] != w.keys[1] {
		t.Errorf("a hot key is %q", w.keys)
	}
}

// However the work is divided, all of it is done, once.
func TestDrive(t *testing.T) {
	for _, goroutines := range []int{1, 2, 3, 16} {
		for _, n := range []int{0, 1, 15, 16, 1000} {
			s := &Subject{decide: turnsTo(Admitted, Admitted)(t, nil, tiered.Limit{})}
			s.walks = newWalks(1)
			if got := s.Drive(goroutines, n); got.With(Admitted) != int64(n) || got.With(Failed) != 0 {
				t.Errorf("%d decisions by %d goroutines are %v", n, goroutines, got)
			}
		}
	}
}
