package measure

import "time"

// thirst is for how long somebody, a process or a key, has been asked and has admitted nothing. The zero value has not been
// asked.
type thirst struct {
	span        // as of the last decision
	before span // the instant of that decision
}

// span is of nothing admitted.
type span struct {
	since   time.Duration // the first request since the last admission was made; means nothing unless starved
	last    time.Duration // decision
	starved bool
}

// demandLasts is how long after a request its demand is taken to go on: who asks again later was not there meanwhile.
const demandLasts = time.Minute

// decided notes a decision about a request, which was made earlier, and reports since when nothing had been admitted by
// then. Decisions come in the order of time. Those of one instant come in the order in which the processors make them, so
// none of them sees the others: together they are an admission, if one of them is.
func (t *thirst) decided(made, at time.Duration, admitted bool) (since time.Duration) {
	if at != t.last {
		t.before = t.span
		t.span = span{since: forever, last: at, starved: true}
	}
	anew := max(made, t.before.last)
	since = anew
	if t.before.on(made) {
		since = t.before.since
	}
	t.since = min(t.since, since)
	if admitted {
		t.starved = false
		since = anew // that others were refused ended when the last of them was
	}
	return min(since, at)
}

// on reports whether it goes on at a time.
func (s *span) on(now time.Duration) bool { return s.starved && now-s.last <= demandLasts }

// thirsts are the longest in a part of a run, −1 without a decision.
type thirsts struct{ process, key time.Duration }

// thirst counts what of two spans to a time lies in the window.
func (w *window) thirstAt(limit int, process, key, at time.Duration) {
	t := &w.thirst[limit]
	t.process = max(t.process, at-max(process, w.from))
	t.key = max(t.key, at-max(key, w.from))
}
