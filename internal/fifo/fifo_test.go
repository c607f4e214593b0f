package fifo_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
)

// TestQueue compares a queue with a slice: the order is the same whichever members join, and leave
// from any place.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q fifo.Queue[int]
		var want []*fifo.Place[int]
		for i := range rapid.IntRange(1, 50).Draw(t, "steps") {
			if len(want) == 0 || rapid.Bool().Draw(t, "joins") {
				p := &fifo.Place[int]{Member: i}
				q.Join(p)
				want = append(want, p)
			} else {
				k := rapid.IntRange(0, len(want)-1).Draw(t, "which")
				q.Leave(want[k])
				want = slices.Delete(want, k, k+1)
			}
			var got []*fifo.Place[int]
			for p := q.First(); p != nil; p = p.Next() {
				got = append(got, p)
			}
			if !slices.Equal(got, want) || q.Len() != len(want) {
				t.Fatalf("it has %v (%d), want %v", got, q.Len(), want)
			}
		}
	})
}
