package adversary

import (
	"fmt"
	"math"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// windowReset forgets what was counted before a reset. Windows count, so a refund undoes an
// admission, and no refill pays for anything. A reset deletes the counts, and what they counted
// comes back no more.
func windowReset(w *World) {
	w.forgotten = len(w.admissions.events)
	for _, l := range w.limits {
		l.from = len(w.admissions.events)
	}
}

// giveBack takes a refund off the admissions. One from before a reset is forgotten already.
func (w *World) giveBack(r refund) {
	if r.event >= w.forgotten {
		w.admit(r.event, -r.n)
	}
}

// windowCounted checks that the store counts what a limit has in use. Limits to which something was
// conceded are skipped.
func windowCounted(w *World, i int, used, spendable, counted int64) {
	if w.damaged || w.limits[i].conceded > 0 {
		return
	}
	if used+spendable > counted {
		w.Failf("limit %d: %d used and %d to spend, of which the store counts %d", i+1, used, spendable, counted)
	}
}

func windowDigest(w *World, d *digester) {
	d.add(uint64(w.segment), uint64(w.written))
	for i, e := range w.admissions.events {
		if e.tokens != 0 {
			d.add(uint64(e.at), uint64(e.tokens), uint64(e.segment), flag(i < w.limits[0].from))
		}
	}
	for _, r := range w.replies {
		if r.to.direct {
			d.add(uint64(w.admissions.events[r.event].at))
		}
	}
}

// fixedRule is that of a fixed window: each holds its limit. If the server's clock is set back by
// more than is waited out, earlier counts stay until an edge is passed and no older lease is out:
// all that is one segment. Otherwise a segment is a window.
type fixedRule struct{}

// blockOf returns the number of the window, or of the block, that an instant is in.
func (w *World) blockOf(l *limit, instant int64) int64 {
	return int64(math.Floor(float64(instant-w.scope.Phase.Microseconds()) / float64(l.Period)))
}

// updateSegment begins a new segment if the present one is over.
func (w *World) updateSegment() {
	if w.scope.Algorithm != lua.FixedWindow {
		return
	}
	now := w.clock()
	latest, _ := w.state.integer("e")
	if window := w.blockOf(w.limits[0], now); window > w.window && latest <= now {
		w.segments++
		w.window, w.segment = window, w.segments
	}
}

// revertSegment follows a clock that was set back: if there was no call since the edge, the store
// never saw it pass.
func (w *World) revertSegment() {
	if w.scope.Algorithm != lua.FixedWindow || !w.state.Exists {
		return
	}
	if window := w.blockOf(w.limits[0], w.state.Last); w.blockOf(w.limits[0], w.clock()) <= window {
		w.window, w.segment = window, w.written
	}
}

func (fixedRule) excess(w *World, l *limit) float64 {
	most, sums := int64(0), make([]int64, w.segments+1)
	for _, e := range w.admissions.events[l.from:] {
		sums[e.segment] += e.tokens
		most = max(most, sums[e.segment])
	}
	return float64(most - l.Cap)
}

func (fixedRule) counted(w *World, spendable int64) {
	w.updateSegment()
	used, l := int64(0), w.limits[0]
	for _, e := range w.admissions.events[l.from:] {
		if e.segment == w.segment {
			used += e.tokens
		}
	}
	count, err := w.state.integer("n")
	if err != nil {
		w.Failf("%v", err)
	}
	if w.written != w.segment || !w.state.Exists {
		count = 0
	}
	windowCounted(w, 0, used, spendable, count)
}

// refund comes off the window of its stamp, if that is still the present one. After the clock was
// set back, older stamps may name the window that it shows now: that is conceded.
func (fixedRule) refund(w *World, r *request, flags lua.Flags) {
	l := w.limits[0]
	if flags&(lua.OtherEpoch|lua.Created) != 0 || w.blockOf(l, r.call.At) != w.blockOf(l, w.clock()) {
		return
	}
	for _, part := range r.refunds {
		switch e := w.admissions.events[part.event]; {
		case e.segment == w.segment:
			w.giveBack(part)
		case w.setBacks > 0:
			w.strayed += part.n
			w.admit(w.newEvent(), -part.n)
		}
	}
}

func (fixedRule) reset(w *World, r *request) {
	now := w.clock()
	if now > w.server() || w.blockOf(w.limits[0], min(r.call.Reset, now)) == w.blockOf(w.limits[0], now) {
		windowReset(w)
	}
}

func (fixedRule) executed(*World, *invariant.Exchange) {}

func (fixedRule) debtCharged(w *World, r *request) {
	l := w.limits[0]
	if w.blockOf(l, r.call.Since) != w.blockOf(l, w.clock()) {
		return // its window is over
	}
	if count, _ := w.state.integer("n"); count < min(r.call.Debt, r.call.Cap)-r.call.Refund-w.strayed {
		w.Failf("%s reports %d tokens of this window, of which the store counts %d", r.process.id, r.call.Debt, count)
	}
}

func (fixedRule) digest(w *World, d *digester) { windowDigest(w, d) }

// slidingRule is that of a sliding window: no interval of its length holds more, and neither do as
// many consecutive blocks as the store counts.
type slidingRule struct{}

func (slidingRule) excess(w *World, l *limit) float64 {
	events, most := w.admissions.events[l.from:], int64(0)
	length := w.scope.length(l.Limit)
	first, sum := 0, int64(0)
	for _, e := range events {
		for ; events[first].at <= e.at-length; first++ {
			sum -= events[first].tokens
		}
		sum += e.tokens
		most = max(most, sum)
	}
	// Where the bucket's clock stood still its blocks are shorter than they look, and versions have
	// none in common.
	if w.setBacks > 0 || w.scope.Versions != nil {
		return float64(most - l.Cap)
	}
	first, sum = 0, 0
	for _, e := range events {
		for ; w.blockOf(l, events[first].key) <= w.blockOf(l, e.key)-l.Span; first++ {
			sum -= events[first].tokens
		}
		sum += e.tokens
		most = max(most, sum)
	}
	return float64(most - l.Cap)
}

// tagOf returns the field in which the store counts a limit.
func tagOf(l lua.Limit) string { return fmt.Sprintf("%dx%d", l.Period, l.Span) }

// trackVersions records which limits of versions are counted, and since when.
func (w *World) trackVersions() {
	for i := range w.scope.Versions {
		for _, l := range w.scope.limits(i, false) {
			if w.state.fields[tagOf(l)] == "" {
				delete(w.began, l)
			} else if _, known := w.began[l]; !known {
				w.began[l] = len(w.admissions.events)
			}
		}
	}
}

// counted returns what the store counts in a limit.
func (w *World) counted(l lua.Limit) int64 {
	n, err := w.state.integer(tagOf(l))
	if err != nil {
		w.Failf("%v", err)
	}
	return n
}

func (slidingRule) counted(w *World, spendable int64) {
	if w.scope.Versions != nil {
		for l, from := range w.began {
			windowCounted(w, 0, w.used(l, max(from, w.limits[0].from)), spendable, w.counted(l))
		}
		return
	}
	for i, l := range w.limits {
		windowCounted(w, i, w.used(l.Limit, l.from), spendable, w.counted(l.Limit))
	}
}

// used returns what was admitted within the length of a limit up to now, from an event on.
func (w *World) used(l lua.Limit, from int) (n int64) {
	since := w.now - w.scope.length(l)
	for _, e := range w.admissions.events[from:] {
		if e.at > since {
			n += e.tokens
		}
	}
	return n
}

func (slidingRule) refund(w *World, r *request, flags lua.Flags) {
	if flags&(lua.OtherEpoch|lua.Created) != 0 {
		return // a new bucket owes nothing
	}
	for _, part := range r.refunds {
		w.giveBack(part)
	}
}

func (slidingRule) reset(w *World, _ *request) { windowReset(w) }

func (slidingRule) executed(*World, *invariant.Exchange) {}

func (slidingRule) debtCharged(w *World, r *request) {
	for _, l := range append([]lua.Limit{{Cap: r.call.Cap, Period: r.call.Period, Span: r.call.Span}}, r.call.Also...) {
		known := &limit{Limit: l}
		at := min(r.call.Since+w.state.Behind, w.state.Last)
		if w.blockOf(known, at) <= w.blockOf(known, w.state.Last)-l.Span {
			continue
		}
		if total := w.counted(l); total < min(r.call.Debt, l.Cap)-r.call.Refund {
			w.Failf("%s reports %d tokens, of which the store counts %d", r.process.id, r.call.Debt, total)
		}
	}
}

func (slidingRule) digest(w *World, d *digester) { windowDigest(w, d) }
