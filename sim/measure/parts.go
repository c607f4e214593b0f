package measure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// forever is the end of a part that ends with the run.
const forever = time.Duration(math.MaxInt64)

// window is a part of a run that is measured: from its first instant to before its last.
type window struct {
	from, to time.Duration
	lo, hi   int           // its segments: lo, …, hi−1
	lane     int           // which of a key's slots is its own
	seen     time.Duration // from when on its policers see admissions

	over       []float64        // by limit: tokens beyond burst + rate·t in the worst interval of the worst key
	parts      []fairness       // by limit: of the keys that are at rest
	starved    []longestStarved // by limit
	shortfalls [][]int64        // by limit and second: tokens that the ideal admits, less those that were admitted
}

// parts cuts a run at all edges of its windows into segments. What adds up is counted per segment, once, however many
// windows there are; segment 0 is what lies before all of them.
type parts struct {
	windows []*window
	edges   []time.Duration // segment i begins at edges[i−1]
	active  [][]*window     // by segment
	policed [][]*window     // by segment: those that see admissions, although they may not count them
	lanes   int
	cells   [][]*cell // by segment and limit

	whole  *window
	phases []namedWindow
	expect []*window // by expectation
}

type namedWindow struct {
	name string
	*window
}

func warmUp(s *scenario.Scenario) time.Duration { return time.Duration(s.MeasuredFrom()) }

// faultEnd returns when a fault ends according to the scenario. One that lasts, without for=, goes on to the end.
func faultEnd(s *scenario.Scenario, f *scenario.Fault) time.Duration {
	at := time.Duration(f.At)
	switch {
	case f.For > 0:
		at += time.Duration(f.For)
	case scenario.Lasts(f.Kind):
		return time.Duration(s.Length)
	case f.Kind == "deploy":
		at += time.Duration(f.Every) * time.Duration(s.Fleet.N)
	default:
		at += time.Duration(f.Restart)
	}
	return min(at, time.Duration(s.Length))
}

// faultsSpan returns from when to when there are faults. Without any both are the end of the run.
func faultsSpan(s *scenario.Scenario) (first, last time.Duration) {
	first = time.Duration(s.Length)
	for i := range s.Faults {
		first = min(first, time.Duration(s.Faults[i].At))
		last = max(last, faultEnd(s, &s.Faults[i]))
	}
	if len(s.Faults) == 0 {
		last = first
	}
	return first, last
}

// newParts finds the windows of a run: all of it from the warm-up on, its phases, and the expectations'. Windows with
// the same edges are one. A phase of no length is left out.
func newParts(s *scenario.Scenario) *parts {
	p := &parts{}
	end, start := time.Duration(s.Length), warmUp(s)
	p.whole = p.window(s, start, end)
	first, last := faultsSpan(s)
	for _, ph := range []struct {
		name     string
		from, to time.Duration
	}{{"before", start, first}, {"during", max(start, first), last}, {"after", max(start, last), end}} {
		if ph.from < ph.to {
			p.phases = append(p.phases, namedWindow{ph.name, p.window(s, ph.from, ph.to)})
		}
	}
	for i := range s.Expect {
		e := &s.Expect[i]
		p.expect = append(p.expect, p.window(s,
			cmp.Or(time.Duration(e.After), start), cmp.Or(time.Duration(e.Before), end)))
	}
	p.cut(len(s.Limits))
	return p
}

// window returns the window from and to, a new one if need be.
func (p *parts) window(s *scenario.Scenario, from, to time.Duration) *window {
	if to >= time.Duration(s.Length) {
		to = forever
	}
	to = max(from, to)
	for _, w := range p.windows {
		if w.from == from && w.to == to {
			return w
		}
	}
	n := len(s.Limits)
	w := &window{
		from: from, to: to, seen: from, over: make([]float64, n), shortfalls: make([][]int64, n),
		parts: make([]fairness, n), starved: make([]longestStarved, n),
	}
	if from == warmUp(s) {
		w.seen = 0
	}
	p.windows = append(p.windows, w)
	return w
}

// cut makes the segments and gives each window a lane: windows that overlap have different ones.
func (p *parts) cut(limits int) {
	for _, w := range p.windows {
		p.edges = append(p.edges, w.from, w.to)
	}
	slices.Sort(p.edges)
	p.edges = slices.Compact(p.edges)
	p.edges = slices.DeleteFunc(p.edges, func(t time.Duration) bool { return t == forever })
	p.active = make([][]*window, len(p.edges)+1)
	p.policed = make([][]*window, len(p.edges)+1)
	p.cells = make([][]*cell, len(p.edges)+1)
	for i := range p.cells {
		for range limits {
			p.cells[i] = append(p.cells[i], &cell{})
		}
	}
	byStart := slices.Clone(p.windows)
	slices.SortStableFunc(byStart, func(a, b *window) int { return cmp.Compare(a.seen, b.seen) })
	var free []time.Duration // of each lane, from when on
	for _, w := range byStart {
		w.lo, w.hi = p.segment(w.from), len(p.edges)+1
		if w.to != forever {
			w.hi = p.segment(w.to)
		}
		for i := w.lo; i < w.hi; i++ {
			p.active[i] = append(p.active[i], w)
		}
		for i := p.segment(w.seen); i < w.hi; i++ {
			p.policed[i] = append(p.policed[i], w)
		}
		w.lane = slices.IndexFunc(free, func(t time.Duration) bool { return t <= w.seen })
		if w.lane < 0 {
			w.lane = len(free)
			free = append(free, 0)
		}
		free[w.lane] = w.to
	}
	p.lanes = len(free)
}

// segment returns that of a time.
func (p *parts) segment(at time.Duration) int {
	i, found := slices.BinarySearch(p.edges, at)
	if found {
		return i + 1
	}
	return i
}

// addShort adds to the balance of the second in which a request was made.
func (w *window) addShort(at time.Duration, limit int, tokens int64) {
	i := int((at - w.from) / time.Second)
	s := w.shortfalls[limit]
	if i >= len(s) {
		s = append(s, make([]int64, i+1-len(s))...)
		w.shortfalls[limit] = s
	}
	s[i] += tokens
}

// shortfall returns the tokens that the ideal admits and that were not admitted, second by second.
func (w *window) shortfall(limit int) (tokens int64) {
	for _, n := range w.shortfalls[limit] {
		tokens += max(n, 0)
	}
	return tokens
}
