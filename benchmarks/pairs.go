package benchmarks

import (
	"slices"
	"testing"
	"time"
)

// Pair is two contestants' usage, one right after the other: whatever else the machine did meanwhile hit both.
type Pair struct{ A, B Usage }

// Turn says how contestants take turns.
type Turn struct {
	Rounds     int           // at least 5
	Slice      time.Duration // of each, about
	Goroutines int
}

// Against lets two subjects work in turns and reports each round. Which of them begins alternates too.
func (t Turn) Against(tb testing.TB, a, b *Subject) []Pair {
	tb.Helper()
	na, nb := t.sliceOf(tb, a), t.sliceOf(tb, b)
	pairs := make([]Pair, t.Rounds)
	for i := range pairs {
		if i%2 == 0 {
			pairs[i].A = a.Measure(tb, t.Goroutines, na)
			pairs[i].B = b.Measure(tb, t.Goroutines, nb)
		} else {
			pairs[i].B = b.Measure(tb, t.Goroutines, nb)
			pairs[i].A = a.Measure(tb, t.Goroutines, na)
		}
	}
	for _, p := range pairs {
		a.Check(tb, p.A)
		b.Check(tb, p.B)
	}
	return pairs
}

// sliceOf is the number of decisions that take a slice's time.
func (t Turn) sliceOf(tb testing.TB, s *Subject) int {
	tb.Helper()
	for n := 100 * t.Goroutines; ; {
		u := s.Measure(tb, t.Goroutines, n)
		s.Check(tb, u)
		next := int(float64(n) * float64(t.Slice) / float64(u.Wall))
		if u.Wall >= t.Slice/4 {
			return max(next, n/4, t.Goroutines)
		}
		n = min(next, 20*n)
	}
}

// Wall is a usage's time per decision; the other figures likewise.
func Wall(u Usage) float64 { return Per(u, u.Wall) }

// ClientCPU is the client's processor time per decision.
func ClientCPU(u Usage) float64 { return Per(u, u.Client) }

// ServerCPU is the server's processor time per decision.
func ServerCPU(u Usage) float64 { return Per(u, u.Server) }

// Quotient is the median over all rounds of A's figure by B's.
func Quotient(pairs []Pair, figure func(Usage) float64) float64 {
	quotients := make([]float64, len(pairs))
	for i, p := range pairs {
		quotients[i] = figure(p.A) / figure(p.B)
	}
	return Median(quotients)
}

// Median is the middle one, or the mean of the two in the middle. It panics without any.
func Median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	n := len(xs)
	return (xs[(n-1)/2] + xs[n/2]) / 2
}
