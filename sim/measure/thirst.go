package measure

import "time"

// thirst is for how long somebody, a process or a key, has been asked and has admitted nothing. The zero value has not been
// asked.
type thirst struct {
	since   time.Duration // the first request since the last admission was made; means nothing unless starved
	last    time.Duration // decision
	starved bool
}

// demandLasts is how long after a request its demand is taken to go on: who asks again later was not there meanwhile.
const demandLasts = time.Minute

// decided notes a decision about a request, which was made earlier, and reports since when nothing had been admitted by
// then. Decisions come in the order of time.
func (t *thirst) decided(made, at time.Duration, admitted bool) (since time.Duration) {
	if !t.on(made) {
		t.since = max(made, t.last)
	}
	since = t.since
	if admitted {
		since = max(made, t.last) // that others were refused ended when the last of them was
	}
	t.last, t.starved = at, !admitted
	return min(since, at)
}

// on reports whether it goes on at a time.
func (t *thirst) on(now time.Duration) bool { return t.starved && now-t.last <= demandLasts }

// thirsts are the longest in a part of a run, −1 without a decision.
type thirsts struct{ process, key time.Duration }

// thirst counts what of two spans to a time lies in the window.
func (w *window) thirstAt(limit int, process, key, at time.Duration) {
	t := &w.thirst[limit]
	t.process = max(t.process, at-max(process, w.from))
	t.key = max(t.key, at-max(key, w.from))
}
