package proof_test

import (
	"slices"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof"
)

func TestShortest(t *testing.T) {
	list := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for _, need := range [][]int{{}, {0}, {9}, {3, 4}, {0, 5, 9}, list} {
		got := proof.Shortest(list, func(some []int) bool {
			return !slices.ContainsFunc(need, func(n int) bool { return !slices.Contains(some, n) })
		})
		if !slices.Equal(got, need) {
			t.Errorf("%v, want %v", got, need)
		}
	}
}
