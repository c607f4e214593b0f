package benchmarks

import (
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
