package benchmarks

import (
	"slices"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		xs   []float64
		want float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 100, 2}, 3},
	} {
		if got := Median(c.xs); got != c.want {
			t.Errorf("the median of %v is %v, not %v", c.xs, got, c.want)
		}
	}
}

// One round that something interrupted does not move the quotient.
func TestQuotient(t *testing.T) {
	took := func(d time.Duration) Usage { return Usage{N: 10, Wall: d} }
	pairs := []Pair{{took(10), took(20)}, {took(900), took(20)}, {took(10), took(20)}}
	if got := Quotient(pairs, Wall); got != 0.5 {
		t.Errorf("the quotient is %v, not 0.5", got)
	}
}

// What is interrupted, or slow for any reason from outside, does not count while one turn of the round is not.
func TestFastest(t *testing.T) {
	took := func(n int, d time.Duration) Usage { return Usage{N: n, Wall: d} }
	round := []Pair{{took(10, 15), took(10, 90)}, {took(10, 70), took(10, 30)}, {took(20, 20), took(10, 50)}}
	if got, want := fastest(round), (Pair{took(20, 20), took(10, 30)}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
}

// Rounds in which the peer was slower throughout do not count, whatever ours was.
func TestCalm(t *testing.T) {
	took := func(a, b time.Duration) Pair { return Pair{Usage{N: 1, Wall: a}, Usage{N: 1, Wall: b}} }
	rounds := []Pair{took(90, 115), took(50, 104), took(999, 100), took(1, 111), took(51, 110)}
	if got, want := calm(rounds), []Pair{rounds[1], rounds[2], rounds[4]}; !slices.Equal(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
	if got := calm(nil); len(got) > 0 {
		t.Errorf("%+v of none", got)
	}
}
