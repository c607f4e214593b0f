package benchmarks

import (
	"math"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

// Pair is the usage of two contestants, one right after the other or each at its best of a round,
// so that any other load on the machine affects both.
type Pair struct{ A, B Usage }

// Turn says how contestants take turns.
type Turn struct {
	Rounds     int           // at least 5
	Slice      time.Duration // of each turn, about
	Goroutines int
	WallOnly   bool // only Wall is read: asking Redis for its figures would take as long as a short slice

	// Tries is the number of turns of each of the two in a round, of which the fastest counts; 0
	// means one. It is for goroutines that wait for nobody: other load on the machine can only make
	// their turn longer, and not both sides by the same factor. If goroutines contend, the fastest
	// turn would be one without contention.
	Tries int
}

// Against lets two subjects work in turns and returns each round. The first one alternates. With
// Tries, rounds that were disturbed as a whole are repeated.
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

// pair runs one turn of each. In every other pair b begins.
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

// fastest returns the fastest A and the fastest B of a round.
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
	// leastRounds is the fewest rounds of which a median is taken.
	leastRounds = 5

	// patience bounds how many times the wanted number of rounds is played to find calm ones: about
	// ten seconds.
	patience = 4

	// disturbed is the factor by which even the fastest turn of a round may exceed the fastest of
	// all. A neighbor on the other half of the core makes it 1.14 to 1.2.
	disturbed = 1.1
)

// undisturbed plays rounds until enough were calm, and returns those. If they do not come it
// returns fewer, or all that were played if the calm ones are too few for a median.
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

// calm returns the rounds in which the machine was as fast as it can be. B decides that, and not A,
// because the claim is about A.
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

// sliceOf returns the number of decisions that take a slice's time, by the fastest of five tries.
// It uses fewer decisions if they are long.
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

// Quotient returns the median over all rounds of A's figure divided by B's.
func Quotient(pairs []Pair, figure func(Usage) float64) float64 {
	quotients := make([]float64, len(pairs))
	for i, p := range pairs {
		quotients[i] = figure(p.A) / figure(p.B)
	}
	return ratio.Median(quotients)
}
