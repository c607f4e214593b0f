package measure

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Decisions of one instant come in any order, and the report must not tell which.
func TestThirstKnowsNoOrderWithinAnInstant(t *testing.T) {
	type decision struct {
		made, at time.Duration
		admitted bool
	}
	longest := func(all []decision) (most time.Duration, end starvation) {
		for _, d := range all {
			most = max(most, d.at-end.decided(d.made, d.at, d.admitted))
		}
		return most, end
	}
	rapid.Check(t, func(t *rapid.T) {
		var there, back []decision
		at := time.Duration(0)
		for range rapid.IntRange(1, 6).Draw(t, "instants") {
			at += time.Duration(rapid.IntRange(1, 90).Draw(t, "later")) * time.Second
			var instant []decision
			for range rapid.IntRange(1, 4).Draw(t, "decisions") {
				waited := time.Duration(rapid.IntRange(0, 3).Draw(t, "waited")) * time.Second
				instant = append(instant, decision{max(at-waited, 0), at, rapid.Bool().Draw(t, "admitted")})
			}
			there = append(there, instant...)
			for i := range instant {
				back = append(back, instant[len(instant)-1-i])
			}
		}
		a, one := longest(there)
		b, other := longest(back)
		if a != b || one != other {
			t.Fatalf("%v and %v, %+v and %+v", a, b, one, other)
		}
	})
}
