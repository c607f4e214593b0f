package benchmarks

import (
	"math"
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

// Against lets two subjects work in turns and reports each round. Which of them begins alternates too. With Tries, rounds
// that were disturbed as a whole are made again.
func (t Turn) Against(tb testing.TB, a, b *Subject) []Pair {
	tb.Helper()
	na, nb := t.sliceOf(tb, a), t.sliceOf(tb, b)
	var all, rounds []Pair
	play := func() Pair {
		first := len(all)
		for range max(t.Tries, 1) {
			all = append(all, t.pair(tb, a, b, na, nb, len(all)))
		}
		return fastest(all[first:])
	}
	if t.Tries > 1 {
		rounds = undisturbed(t.Rounds, play)
	} else {
		for range t.Rounds {
			rounds = append(rounds, play())
		}
	}
	for _, p := range all {
		a.Check(tb, p.A)
		b.Check(tb, p.B)
	}
	a.CheckKeys(tb)
	b.CheckKeys(tb)
	return rounds
}

// pair is one turn of each; in every other pair b begins.
func (t Turn) pair(tb testing.TB, a, b *Subject, na, nb, number int) (p Pair) {
	tb.Helper()
	if number%2 == 0 {
		p.A = t.measure(tb, a, na)
		p.B = t.measure(tb, b, nb)
	} else {
		p.B = t.measure(tb, b, nb)
		p.A = t.measure(tb, a, na)
	}
	return p
}

// fastest has the fastest A and the fastest B of a round.
func fastest(round []Pair) Pair {
	best := round[0]
	for _, p := range round[1:] {
		if Wall(p.A) < Wall(best.A) {
			best.A = p.A
		}
		if Wall(p.B) < Wall(best.B) {
			best.B = p.B
		}
	}
	return best
}

const (
	// leastRounds is the fewest rounds that a median is of.
	leastRounds = 5

	// patience is how many times the rounds that are wanted are played at most, to find calm ones: some ten seconds.
	patience = 4

	// disturbed is by how much even the fastest turn of a round may be slower than the fastest of all: a neighbor on the other
	// half of the core makes it 1.14 to 1.2 times.
	disturbed = 1.1
)

// undisturbed plays rounds until as many as are wanted were calm, and has those: fewer, where they do not come, and if they are
// too few for a median, all that were played.
func undisturbed(wanted int, play func() Pair) []Pair {
	var rounds, quiet []Pair
	for len(quiet) < wanted && len(rounds) < patience*wanted {
		rounds = append(rounds, play())
		quiet = calm(rounds)
	}
	if len(quiet) < leastRounds {
		return rounds
	}
	return quiet
}

// calm are the rounds in which the machine was as fast as it can be. B tells, and not A, which is what the claim is about.
func calm(rounds []Pair) (quiet []Pair) {
	best := math.Inf(1)
	for _, p := range rounds {
		best = min(best, Wall(p.B))
	}
	for _, p := range rounds {
		if Wall(p.B) <= disturbed*best {
			quiet = append(quiet, p)
		}
	}
	return quiet
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
