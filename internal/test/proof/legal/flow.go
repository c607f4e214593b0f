package legal

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
)

// flow measures time by the tokens that a changing rate has brought: by it the rate is one token per unit.
type flow struct {
	edges  []time.Duration // where the rate changes; the first is 0
	rates  []float64       // tokens per ns from each edge on: the largest rate in force
	tokens []float64       // brought until each edge
	unit   float64
}

// newFlow returns the flow of a limit up to a horizon, or nil if it brings more tokens than can be counted.
func newFlow(terms []term, horizon time.Duration) *flow {
	f := &flow{edges: []time.Duration{0, horizon}}
	for _, t := range terms {
		f.edges = append(f.edges, min(t.from, horizon), min(t.until, horizon))
	}
	slices.Sort(f.edges)
	f.edges = slices.Compact(f.edges)
	sum := 0.0
	for i, at := range f.edges {
		rate := 0.0
		for _, t := range terms {
			if t.from <= at && at < t.until {
				rate = max(rate, float64(t.Tokens)/float64(t.Per))
			}
		}
		if i > 0 {
			sum += f.rates[i-1] * float64(at-f.edges[i-1])
		}
		f.rates, f.tokens = append(f.rates, rate), append(f.tokens, sum)
	}
	if sum > 1<<60 {
		return nil
	}
	f.unit = math.Exp2(min(30, math.Floor(61-math.Log2(max(sum, 1)))))
	return f
}

// at converts a time in ns to the time of the flow.
func (f *flow) at(ns int64) int64 {
	i, exact := slices.BinarySearch(f.edges, time.Duration(ns))
	if !exact {
		i--
	}
	return int64((f.tokens[i] + f.rates[i]*float64(time.Duration(ns)-f.edges[i])) * f.unit)
}

// admissions and credits are the same in the time of the flow.
func (f *flow) admissions(all []ideal.Admission) (in []ideal.Admission) {
	for _, a := range all {
		in = append(in, ideal.Admission{Before: f.at(a.Before), After: f.at(a.After) + 1, Tokens: a.Tokens})
	}
	return in
}

func (f *flow) credits(all []ideal.Credit) (in []ideal.Credit) {
	for _, c := range all {
		in = append(in, ideal.Credit{From: f.at(c.From), To: f.at(c.To) + 1, Tokens: c.Tokens})
	}
	return in
}

// error returns by how many tokens a time may be wrong, and a level that is stored as a double.
func (f *flow) error() float64 {
	return 1e-6 + 4/f.unit + f.tokens[len(f.tokens)-1]*1e-14
}

func (f *flow) describe(e ideal.Excess) string {
	return fmt.Sprintf("%d tokens where %.3f came", e.Tokens, e.Bound)
}
