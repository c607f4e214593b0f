package measure

import (
	"cmp"
	"math"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// forever is the end of a window that ends with the run.
const forever = time.Duration(math.MaxInt64)

// window is a part of a run that is measured: from its first instant to before its last. Windows
// may overlap. What happens counts in each window that contains it.
type window struct {
	number   int
	phase    string // of the run, if it is one
	from, to time.Duration
	seen     time.Duration // from when on its policers see admissions
	limits   []part
	calls    int64 // of Redis

	running      int   // requests of one key at the same time, at most
	needed, full int64 // requests that needed a place, and those that got none
}

// part is what is measured of a limit in a window.
type part struct {
	offered, admitted, ideal int64 // tokens
	alone                    int64 // of admitted, by the fail mode

	within, denied int64 // requests that the ideal limiter admits, and of these the refused ones
	times          histogram

	over float64 // tokens beyond the limit that is exceeded most, of the worst key in its worst time
	bins []bin
}

// bin is the tokens of 100 ms.
type bin struct{ admitted, ideal int64 }

const (
	binLength = 100 * time.Millisecond
	bins1s    = int(time.Second / binLength)
)

// merge adds what another limit has, except for the bins.
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
	all       []*window
	whole     *window
	phases    []*window
	expect    []*window     // by expectation
	lastFault time.Duration // when the last fault ends
}

func warmUp(s *scenario.Scenario) time.Duration { return time.Duration(s.MeasuredFrom()) }

// faultEnd returns when a fault ends according to the scenario. One that lasts, without for=, goes
// on to the end.
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

// newWindows returns the windows of a run: all of it from the warm-up on, its phases, and those of
// its expectations. A phase of no length is left out. Without a fault all of the run is before it.
// No fault begins in the warm-up.
func newWindows(s *scenario.Scenario) *windows {
	ws := &windows{}
	end, start := time.Duration(s.Length), warmUp(s)
	ws.whole = ws.window(s, start, end)
	first := end
	for i := range s.Faults {
		first = min(first, time.Duration(s.Faults[i].At))
		ws.lastFault = max(ws.lastFault, faultEnd(s, &s.Faults[i]))
	}
	ws.lastFault = cmp.Or(ws.lastFault, end)
	edges := []time.Duration{start, first, ws.lastFault, end}
	for i, name := range []string{"before", "during", "after"} {
		if edges[i] < edges[i+1] {
			ws.phases = append(ws.phases, ws.window(s, edges[i], edges[i+1]))
			ws.phases[len(ws.phases)-1].phase = name
		}
	}
	for i := range s.Expect {
		e := &s.Expect[i]
		ws.expect = append(ws.expect,
			ws.window(s, cmp.Or(time.Duration(e.After), start), cmp.Or(time.Duration(e.Before), end)))
	}
	return ws
}

// window returns the window from and to. There is one for all that have the same edges.
func (ws *windows) window(s *scenario.Scenario, from, to time.Duration) *window {
	if to >= time.Duration(s.Length) {
		to = forever
	}
	to = max(from, to)
	for _, w := range ws.all {
		if w.from == from && w.to == to {
			return w
		}
	}
	w := &window{number: len(ws.all), from: from, to: to, seen: from, limits: make([]part, len(s.Limits))}
	if from == warmUp(s) {
		w.seen = 0
	}
	ws.all = append(ws.all, w)
	return w
}

func (w *window) has(at time.Duration) bool { return w.from <= at && at < w.to }

// bin returns the bin of a request.
func (w *window) bin(at time.Duration, limit int) *bin {
	p := &w.limits[limit]
	i := int((at - w.from) / binLength)
	p.bins = grow(p.bins, i)
	return &p.bins[i]
}

// short returns by how much the ideal exceeds what was admitted, in each second.
func short(bins []bin) (short int64) {
	for i := 0; i < len(bins); i += bins1s {
		var second int64
		for _, b := range bins[i:min(i+bins1s, len(bins))] {
			second += b.ideal - b.admitted
		}
		short += max(0, second)
	}
	return short
}

// recovered returns after how long the admitted rate was within 5 % of the ideal and stayed so for
// a second. It is −1 if it was not. The rate is taken over a second, or over the time in which the
// ideal admits 400 tokens if that is longer, because chance alone changes 400 tokens by √400 = 20,
// which is 5 %. That time is at most ten seconds, and half of what there is, so that enough is left
// to see whether the rate stays.
func recovered(bins []bin) time.Duration {
	var sum int64
	for _, b := range bins {
		sum += b.ideal
	}
	wide := int(min(float64(10*bins1s), math.Ceil(400*float64(len(bins))/float64(max(sum, 1)))))
	wide = max(bins1s, min(wide, len(bins)/2))
	near := 0 // consecutive rates
	for i := 0; i+wide <= len(bins); i++ {
		var admitted, ideal float64
		for _, b := range bins[i : i+wide] {
			admitted += float64(b.admitted)
			ideal += float64(b.ideal)
		}
		if near++; math.Abs(admitted-ideal) > max(1, 0.05*ideal, math.Sqrt(ideal)) {
			near = 0
		} else if near > bins1s {
			return time.Duration(i-bins1s) * binLength
		}
	}
	return -1
}

// histogram counts times. Each doubling has 2⁷ = 128 slots, so the middle of one is at most 0.4 %
// off. Times above 2⁴¹ ns, 36 minutes, count as 36 minutes. The zero value is empty.
type histogram struct {
	n      int64
	max    time.Duration // exact
	counts [41<<7 + 1]int64
}

// A slot is the exponent and the first seven binary digits of a float64. slotOf0 is the one below
// that of 1 ns.
const (
	slotBits = 52 - 7
	slotOf0  = 1023<<7 - 1
)

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.n++
	h.max = max(h.max, d)
	slot := int(math.Float64bits(float64(d))>>slotBits) - slotOf0
	h.counts[max(0, min(slot, len(h.counts)-1))]++
}

// merge adds all that o has counted.
func (h *histogram) merge(o *histogram) {
	h.n += o.n
	h.max = max(h.max, o.max)
	for i, n := range o.counts {
		h.counts[i] += n
	}
}

// quantile returns the shortest time that at least a part q of all times do not exceed, −1 ns if
// there are no times.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.n)))
	for i, n := range h.counts {
		if rank -= n; n > 0 && rank <= 0 {
			middle := math.Float64frombits(uint64(slotOf0+i)<<slotBits | 1<<(slotBits-1))
			return min(time.Duration(middle), h.max)
		}
	}
	return -1
}

// grow returns s with at least i+1 elements.
func grow[T any](s []T, i int) []T {
	if i >= len(s) {
		s = append(s, make([]T, i+1-len(s))...)
	}
	return s
}
