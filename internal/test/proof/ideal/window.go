package ideal

import "math"

// Window is the ideal fixed window: it admits a quota in each window and answers at once. It also
// judges what others admit. Make one with [NewWindow].
type Window struct {
	quota    int64
	of       func(at int64) (from, to int64)
	from, to int64 // ns, the present window
	used     int64
	over     float64
}

// NewWindow returns a limiter of which nothing is used. of returns the window that contains a time
// (ns): its first instant and that of the next one.
func NewWindow(quota int64, of func(at int64) (from, to int64)) *Window {
	return &Window{quota: quota, of: of, from: math.MinInt64, to: math.MinInt64, over: math.Inf(-1)}
}

// reach moves on to the window of a time.
func (w *Window) reach(at int64) {
	if at >= w.to {
		w.from, w.to = w.of(at)
		w.used = 0
	}
}

// Has reports whether n tokens can be had at a time (ns). Times must not go back.
func (w *Window) Has(at, n int64) bool {
	w.reach(at)
	return n <= w.quota-w.used
}

// Take takes n tokens at a time if they can be had, and reports that.
func (w *Window) Take(at, n int64) bool {
	has := w.Has(at, n)
	if has {
		w.used += n
	}
	return has
}

// Allows reports how many tokens can be had from a time until before another one: what the window
// has left, and the quotas of those that begin meanwhile. It has no burst beside that.
func (w *Window) Allows(from, to, _ int64) float64 {
	sum, end := w.quota, w.to
	if from < w.to {
		sum -= w.used
	} else {
		_, end = w.of(from)
	}
	for ; end < to; _, end = w.of(end) {
		sum += w.quota
	}
	return float64(sum)
}

// Admit records an admission by somebody else, between the times when it was asked for and when it
// was decided. It counts only if one window has both: else nobody knows which window it was in.
func (w *Window) Admit(asked, decided, n int64) {
	if w.reach(decided); asked >= w.from {
		w.used += n
		w.over = max(w.over, float64(w.used-w.quota))
	}
}

// Over is how many tokens beyond the quota the worst window has.
func (w *Window) Over() float64 { return w.over }

// Forget forgets the worst window so far, and not what the present one has used.
func (w *Window) Forget() { w.over = math.Inf(-1) }
