package legal

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// over returns by how much the worst interval exceeds a limit, and which interval that is.
func (b *history) over(terms []term) (tokens float64, where string) {
	switch b.rules.Algorithm {
	case tiered.TokenBucket:
		return b.overBucket(terms)
	case tiered.FixedWindow:
		if !b.rules.Limit.Calendar.IsZero() {
			return b.overCalendar(terms)
		}
		return b.overFixed(terms)
	case tiered.SlidingLog, tiered.SlidingWindow:
		return b.overSliding(terms)
	}
	panic("legal: nothing says what a " + b.rules.Algorithm.String() + " promises")
}

// overBucket compares what was admitted with an ideal bucket. Time is measured by what the largest
// rate in force brings, so that a changing rate becomes a constant one. A smaller burst is compared
// with what was admitted once no lease of a larger one was left.
func (b *history) overBucket(terms []term) (worst float64, where string) {
	if len(b.sure) == 0 {
		return 0, ""
	}
	f := newFlow(terms, b.horizon(b.sure)+1)
	if f == nil {
		return 0, ""
	}
	worst = math.Inf(-1)
	for _, t := range terms {
		for from, to := alone(terms, t, 0, b.life); from < never; from, to = alone(terms, t, to, b.life) {
			if e := b.worst(f, from, to, burst(t.Limit)); e.Over > worst {
				worst, where = e.Over, f.describe(e)
			}
		}
	}
	return worst - f.error(), where
}

// horizon is the time of the last admission or credit.
func (b *history) horizon(admitted []ideal.Admission) (last time.Duration) {
	for _, a := range admitted {
		last = max(last, time.Duration(a.After))
	}
	for _, c := range b.credits {
		last = max(last, time.Duration(c.To))
	}
	return last
}

// alone returns the next span, not before from, in which no burst larger than t's is in force and
// no lease of one is left.
func alone(terms []term, t term, from, life time.Duration) (start, end time.Duration) {
	start, end = from, never
	for moved := true; moved; {
		moved = false
		for _, x := range terms {
			if burst(x.Limit) > burst(t.Limit) && x.from <= start && start < after(x.until, life) {
				start, moved = after(x.until, life), true
			}
		}
	}
	for _, x := range terms {
		if burst(x.Limit) > burst(t.Limit) && x.from > start {
			end = min(end, x.from)
		}
	}
	return start, end
}

// worst returns the worst interval within a span.
func (b *history) worst(f *flow, from, to time.Duration, burst int64) ideal.Excess {
	var sure []ideal.Admission
	for _, a := range b.sure {
		if time.Duration(a.Before) >= from && time.Duration(a.After) < to {
			sure = append(sure, a)
		}
	}
	return ideal.WorstNet(f.admissions(sure), f.credits(b.credits), 1, time.Duration(f.unit), burst)
}

// overFixed compares each window with the largest limit in force. A window that a step of the clock
// cuts is skipped.
func (b *history) overFixed(terms []term) (worst float64, where string) {
	per := b.rules.Limit.Per
	worst = math.Inf(-1)
	for start, s := range b.steady(b.wall()) {
		windows := map[int64]bool{}
		for _, a := range b.sure {
			windows[floorDiv(int64(start)+a.Before-int64(b.phase), int64(per))] = true
		}
		for n := range windows {
			first := time.Duration(n*int64(per)+int64(b.phase)) - start
			if first < s.from || first+per > s.to {
				continue
			}
			if over := b.within(terms, first, first+per); over > worst {
				worst, where = over, "the window from "+first.String()
			}
		}
	}
	return worst, where
}

// stretch is a time in which nobody sets the store's clock.
type stretch struct{ from, to time.Duration }

// steady yields what the store's clock shows at the time 0 of the history, if it goes on as in each
// time between two steps, and that time. The first has no begin: it cuts no window. clock is what
// the clock shows at the beginning.
func (b *history) steady(clock time.Duration) iter.Seq2[time.Duration, stretch] {
	return func(yield func(time.Duration, stretch) bool) {
		s := stretch{math.MinInt64, never}
		for _, m := range b.moves {
			if s.to = m.at; !yield(clock, s) {
				return
			}
			clock, s = clock+m.by, stretch{m.at, never}
		}
		yield(clock, s)
	}
}

// wall returns the time of the store's clock at the beginning, since 1970 and modulo the window.
func (b *history) wall() time.Duration {
	return time.Duration(b.base.UnixNano() % int64(b.rules.Limit.Per))
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

// overSliding compares each interval of the shortest length with the largest limit that was in
// force.
func (b *history) overSliding(terms []term) (worst float64, where string) {
	longest := time.Duration(0)
	for _, t := range terms {
		longest = max(longest, t.Per)
	}
	worst = math.Inf(-1)
	for i, a := range b.sure {
		if i > 0 && b.sure[i-1].Before == a.Before {
			continue
		}
		from := time.Duration(a.Before)
		per := longest
		for _, t := range terms {
			if t.from <= after(from, longest) && after(t.until, b.life) >= from {
				per = min(per, t.Per)
			}
		}
		if over := b.within(terms, from, after(from, per)); over > worst {
			worst, where = over, "the interval from "+from.String()
		}
	}
	return worst, where
}

// within returns by how much the tokens admitted in the interval [from, to) exceed the largest
// limit that was in force.
func (b *history) within(terms []term, from, to time.Duration) float64 {
	most, sum := int64(0), int64(0)
	for _, t := range terms {
		if t.from <= to && after(t.until, b.life) >= from {
			most = max(most, t.Tokens)
		}
	}
	for _, a := range b.sure {
		if time.Duration(a.Before) >= from && time.Duration(a.After) < to {
			sum += a.Tokens
		}
	}
	for _, c := range b.credits {
		if time.Duration(c.From) <= to && time.Duration(c.To) >= from {
			sum -= c.Tokens
		}
	}
	return float64(sum - most)
}

// flow measures time by the tokens that a changing rate has brought: by it the rate is one token
// per unit.
type flow struct {
	edges  []time.Duration // where the rate changes; the first is 0
	rates  []float64       // tokens per ns from each edge on: the largest rate in force
	tokens []float64       // brought until each edge
	unit   float64
}

// newFlow returns the flow of a limit up to a horizon, or nil if it brings more tokens than can be
// counted.
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
