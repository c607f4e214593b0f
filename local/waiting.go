package local

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A caller that waits for tokens and asks again is another kind of request. It sets no hold-off and minds none: it asks
// when the tokens may be there, for those behind it too. It is counted when it is served.

// maxAskers is how many processes may ask for each token that they wait for.
const maxAskers = 3

// later is now + d, or never.
func later(now, d time.Duration) time.Duration {
	if d >= never-now {
		return never
	}
	return now + d
}

// refusal asks a denial for a waiter: refuses, or lacks for one that waits and asks again.
func (w *Waiter) refusal(d *denial, now time.Duration, need int64) (retry time.Duration, refused bool) {
	if w.AskAgain {
		return d.lacks(now, need)
	}
	return d.refuses(now, need)
}

// RefuseWaiter is Refuse for a caller that waits; see [Waiter.AskAgain].
func (h *hot) RefuseWaiter(now time.Duration, n int64) (Verdict, bool) {
	d, held := h.denied.Load(), h.held(now)
	retry, refused := d.lacks(now, n-held)
	if !refused || n <= held || d.reserves() { // what the pot holds for the caller, takers do not see
		return Verdict{}, false
	}
	return Verdict{Outcome: Refused, Left: h.refusedLeft(d, now, held), Retry: retry}, true
}

// Reserved reports how many tokens are kept for callers who wait. It takes no lock.
func (h *hot) Reserved() int64 {
	if d := h.denied.Load(); d != nil {
		return d.reserved
	}
	return 0
}

// Yield reports how long a process that waits should leave the tokens to the others that lease from the bucket, beyond
// the time when the next token can be there. active is how many leases are active; see [Waiter.Active]. A few processes
// only keep out of step, so that none is always the second. If there are more, each asks for its part of the refill:
// calls per token stay few, whatever their number. It takes no lock.
func (h *hot) Yield(active int64) time.Duration {
	p := h.Policy()
	switch {
	case p.Call.Algorithm != lua.TokenBucket || active <= 1 || h.view.level.Load() >= active:
		return 0
	case active <= maxAskers:
		return p.between(0, 0.25, p.wait(1))
	}
	return p.between(0.5, 1.5, p.wait(float64(active-maxAskers)))
}
