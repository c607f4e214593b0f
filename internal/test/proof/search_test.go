package proof_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

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

// What is needed stays, and what the caller has.
func TestSimplest(t *testing.T) {
	type part struct {
		N    int
		Wait time.Duration
		Of   map[string]int
	}
	type whole struct {
		Parts []part
		Name  string
		On    bool
	}
	of := whole{[]part{{7, 1500 * time.Microsecond, map[string]int{"a": 1}}, {8, 2500 * time.Microsecond, nil}}, "x", true}
	got := proof.Simplest(of, func(w whole) bool {
		return len(w.Parts) == 2 && w.Parts[0].Of != nil && w.Parts[1].N > 0 && w.Parts[1].Wait > time.Microsecond
	})
	want := whole{Parts: []part{{Of: map[string]int{"a": 1}}, {N: 1, Wait: 3 * time.Millisecond}}}
	if !reflect.DeepEqual(got, want) || of.Parts[0].N != 7 {
		t.Errorf("%+v of %+v, want %+v", got, of, want)
	}
}
