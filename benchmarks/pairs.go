package benchmarks

import (
	"slices"
	"testing"
	"time"
)

// Pair is two contestants' usage, one right after the other or at the best of a round: whatever else the machine did meanwhile
// hit both.
type Pair struct{ A, B Usage }

// Turn says how contestants take turns.
type Turn struct {
	Rounds     int           // at least 5
	Slice      time.Duration // of each turn, about
	Goroutines int
	WallOnly   bool // only Wall is read: asking Redis for its figures would take as long as a short slice

	// Tries is how many turns each of the two has in a round, of which its fastest counts; 0 is one. It is for goroutines that
	// wait for nobody: whatever else the machine does can only make their turn longer, and not both sides by the same factor.
	// Where goroutines meet, the fastest turn would be one in which they missed each other.
	Tries int
}

// Against lets two subjects work in turns and reports each round. Which of them begins alternates too.
func (t Turn) Against(tb testing.TB, a, b *Subject) []Pair {
	tb.Helper()
	na, nb := t.sliceOf(tb, a), t.sliceOf(tb, b)
	tries := max(t.Tries, 1)
	pairs := make([]Pair, t.Rounds*tries)
	for i := range pairs {
		if i%2 == 0 {
			pairs[i].A = t.measure(tb, a, na)
			pairs[i].B = t.measure(tb, b, nb)
		} else {
			pairs[i].B = t.measure(tb, b, nb)
			pairs[i].A = t.measure(tb, a, na)
		}
	}
	for _, p := range pairs {
		a.Check(tb, p.A)
		b.Check(tb, p.B)
	}
	a.CheckKeys(tb)
	b.CheckKeys(tb)
	return fastest(pairs, tries)
}

// fastest has of each so many pairs in a row the fastest A and the fastest B.
func fastest(pairs []Pair, of int) []Pair {
	rounds := make([]Pair, 0, len(pairs)/of)
	for round := range slices.Chunk(pairs, of) {
		best := round[0]
		for _, p := range round[1:] {
			if Wall(p.A) < Wall(best.A) {
				best.A = p.A
			}
			if Wall(p.B) < Wall(best.B) {
				best.B = p.B
			}
		}
		rounds = append(rounds, best)
	}
	return rounds
}

func (t Turn) measure(tb testing.TB, s *Subject, n int) Usage {
	tb.Helper()
	if t.WallOnly {
		return s.Time(t.Goroutines, n)
	}
	return s.Measure(tb, t.Goroutines, n)
}

// sliceOf is the number of decisions that take a slice's time, by the fastest of five tries; of fewer if they are long.
func (t Turn) sliceOf(tb testing.TB, s *Subject) int {
	tb.Helper()
	n := 10 * t.Goroutines
	for tries, spent := 0, time.Duration(0); tries < 5 && spent < t.Slice+50*time.Millisecond; {
		u := s.Time(t.Goroutines, n)
		spent += u.Wall
		fits := int(float64(n) * float64(t.Slice) / float64(u.Wall))
		if u.Wall >= t.Slice/4 {
			tries++
		}
		n = max(n, min(fits, 10*n))
	}
	return n
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
