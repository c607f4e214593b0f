package benchmarks

import (
	"slices"
	"testing"
	"time"
)

// One round that something interrupted does not move the quotient.
func TestQuotient(t *testing.T) {
	took := func(d time.Duration) Usage { return Usage{N: 10, Wall: d} }
	pairs := []Pair{{took(10), took(20)}, {took(900), took(20)}, {took(10), took(20)}}
	if got := Quotient(pairs, Wall); got != 0.5 {
		t.Errorf("the quotient is %v, not 0.5", got)
	}
}

// What is interrupted, or slow for any reason from outside, does not count while one turn of the
// round is not.
func TestFastest(t *testing.T) {
	took := func(n int, d time.Duration) Usage { return Usage{N: n, Wall: d} }
	round := []Pair{{took(10, 15), took(10, 90)}, {took(10, 70), took(10, 30)}, {took(20, 20), took(10, 50)}}
	if got, want := fastest(round), (Pair{took(20, 20), took(10, 30)}); got != want {
		t.Errorf("%+v, not %+v", got, want)
	}
}

// took is a round of one decision each.
func took(a, b time.Duration) Pair { return Pair{Usage{N: 1, Wall: a}, Usage{N: 1, Wall: b}} }

// Rounds in which the peer was slower throughout do not count, whatever ours was.
func TestCalm(t *testing.T) {
	rounds := []Pair{took(90, 115), took(50, 104), took(999, 100), took(1, 111), took(51, 110)}
	if got, want := calm(rounds), []Pair{rounds[1], rounds[2], rounds[4]}; !slices.Equal(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
	if got := calm(nil); len(got) > 0 {
		t.Errorf("%+v of none", got)
	}
}

// Rounds are played until there are enough calm ones, and no longer than that; what is too little
// for a median is not chosen from.
func TestUndisturbed(t *testing.T) {
	for _, c := range []struct {
		name    string
		peer    string // of each round: c for calm, d for disturbed; the last one goes on
		played  int
		results int
	}{
		{"calm", "c", 6, 6},
		{"disturbed at first", "ddddc", 10, 6},
		{"now and then", "cdcdcdcdcdc", 11, 6},
		{"hardly ever calm", "cccccd", 24, 5},
		{"too few", "ccccd", 24, 24},
	} {
		played := 0
		rounds := undisturbed(6, func() Pair {
			state := c.peer[min(played, len(c.peer)-1)]
			played++
			return took(time.Duration(played), map[byte]time.Duration{'c': 100, 'd': 120}[state])
		})
		if played != c.played || len(rounds) != c.results {
			t.Errorf("%s: %d of %d rounds count, want %d of %d", c.name, len(rounds), played, c.results, c.played)
		}
	}
}
