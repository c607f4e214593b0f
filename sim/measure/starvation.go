package measure

import "time"

// starvation measures for how long a process or a key has been asked and has admitted nothing. The zero value has not
// been asked.
type starvation struct {
	span        // as of the last decision
	before span // the instant of that decision
}

// span is a time in which nothing was admitted.
type span struct {
	since   time.Duration // the first request since the last admission was made; has no meaning unless starved
	last    time.Duration // decision
	starved bool
}

// demandLasts is how long demand goes on after a request. A later request begins anew.
const demandLasts = time.Minute

// decided records a decision about a request that was made earlier, and returns since when nothing had been admitted by
// then. Decisions come in the order of time. Those of one instant come in the order of the processors, so none of them
// sees the others: together they are an admission if one of them is.
func (t *starvation) decided(made, at time.Duration, admitted bool) (since time.Duration) {
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

// on reports whether the span goes on at a time.
func (s *span) on(now time.Duration) bool { return s.starved && now-s.last <= demandLasts }

// longestStarved are the longest times in a part of a run, −1 without a decision.
type longestStarved struct{ process, key time.Duration }

// starvedAt counts the parts of two spans up to a time that are within the window.
func (w *window) starvedAt(limit int, process, key, at time.Duration) {
	t := &w.starved[limit]
	t.process = max(t.process, at-max(process, w.from))
	t.key = max(t.key, at-max(key, w.from))
}
