package measure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// forever is the end of a window that ends with the run.
const forever = time.Duration(math.MaxInt64)

// window is a part of a run that is measured: from its first instant to before its last. Windows may overlap. What
// happens counts in each window that contains it.
type window struct {
	number   int
	name     string // of a phase
	from, to time.Duration
	seen     time.Duration // from when on its policers see admissions
	limits   []part
	stats    tally
	calls    int64 // of Redis
}

// part is what is measured of a limit in a window.
type part struct {
	offered, admitted, ideal int64 // tokens
	alone                    int64 // of admitted, by the fail mode

	within, denied int64 // requests that the ideal bucket admits, and of these the refused ones
	waited         int64 // decisions
	times          histogram

	over  float64 // tokens beyond burst + rate·t in the worst interval of the worst key
	short []int64 // by second: tokens that the ideal admits, less those that were admitted
}

// merge adds what another limit has, except for short.
func (p *part) merge(o *part) {
	p.offered += o.offered
	p.admitted += o.admitted
	p.ideal += o.ideal
	p.alone += o.alone
	p.within += o.within
	p.denied += o.denied
	p.times.merge(&o.times)
	p.over = max(p.over, o.over)
}

// windows are those of a run.
type windows struct {
	all    []*window
	whole  *window
	phases []*window
	expect []*window // by expectation
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

// newWindows returns the windows of a run: all of it from the warm-up on, its phases, and those of its expectations. A
// phase of no length is left out. Expectations with the same edges share a window.
func newWindows(s *scenario.Scenario) *windows {
	ws := &windows{}
	end, start := time.Duration(s.Length), warmUp(s)
	ws.whole = ws.window(s, "all", start, end)
	first, last := faultsSpan(s)
	for _, w := range []window{
		{name: "before", from: start, to: first},
		{name: "during", from: max(start, first), to: last},
		{name: "after", from: max(start, last), to: end},
	} {
		if w.from < w.to {
			ws.phases = append(ws.phases, ws.window(s, w.name, w.from, w.to))
		}
	}
	for i := range s.Expect {
		e := &s.Expect[i]
		ws.expect = append(ws.expect,
			ws.window(s, "", cmp.Or(time.Duration(e.After), start), cmp.Or(time.Duration(e.Before), end)))
	}
	return ws
}

// window returns the window from and to. One without a name may be another one with the same edges.
func (ws *windows) window(s *scenario.Scenario, name string, from, to time.Duration) *window {
	if to >= time.Duration(s.Length) {
		to = forever
	}
	to = max(from, to)
	i := slices.IndexFunc(ws.all, func(w *window) bool { return name == "" && w.from == from && w.to == to })
	if i >= 0 {
		return ws.all[i]
	}
	w := &window{number: len(ws.all), name: name, from: from, to: to, seen: from, limits: make([]part, len(s.Limits))}
	if from == warmUp(s) {
		w.seen = 0
	}
	ws.all = append(ws.all, w)
	return w
}

func (w *window) has(at time.Duration) bool { return w.from <= at && at < w.to }

// addShort adds to the balance of the second in which a request was made.
func (w *window) addShort(at time.Duration, limit int, tokens int64) {
	p := &w.limits[limit]
	i := int((at - w.from) / time.Second)
	p.short = grow(p.short, i)
	p.short[i] += tokens
}

// grow returns s with at least i+1 elements.
func grow[T any](s []T, i int) []T {
	if i >= len(s) {
		s = append(s, make([]T, i+1-len(s))...)
	}
	return s
}
