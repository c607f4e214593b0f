package local

import (
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// windowState is what a bucket knows besides the rest if its policy does not just refill. A nil
// *windowState is that of a policy that does. It answers as if nothing was known, and notes
// nothing.
type windowState struct {
	stamp atomic.Pointer[Stamp] // of the last accepted reply: the tokens in the pot were counted then or later

	// What the last accepted reply said. Decisions read it without the mutex.
	clearAt  atomic.Int64  // ns since the base: nothing that was known counts any more; 0 before the first reply
	tightest atomic.Uint32 // the limit, from 1, that has the least left; 0 before the first reply
	refuser  atomic.Uint32 // the limit that the last refusal waits for longest; 0 before the first refusal

	told   int64         // the newest time on the bucket's clock that Redis told, µs
	counts time.Duration // until then something counts for certain, unless others give it back
	edge   bool          // the lease ends with its window: no call prolongs it

	refund *Stamp   // the oldest of what is to be refunded, because a stamp gives back only what counts there
	settle []*Stamp // entries that cost less than the log has them at. Invariant: each has owed > 0

	debts dated // invariant: the sum of these debts is the debt, if the bucket freezes it
}

// charged notes that n tokens count from now on.
func (w *windowState) charged(now time.Duration, p *Policy, n int64) {
	if w == nil {
		return
	}
	clear := time.Duration(w.clearAt.Load())
	switch {
	case !p.Call.Algorithm.Has(lua.Window):
		clear = later(max(clear, now), p.wait(float64(n)))
	case !p.Call.Algorithm.Has(lua.Edges) || now >= clear: // else they leave with the window
		clear = max(clear, now+p.window())
	}
	w.clearAt.Store(int64(clear))
}

// clear reports whether nothing that was known counts any more.
func (w *windowState) clear(now time.Duration) bool { return now >= time.Duration(w.clearAt.Load()) }

// endsWithWindow reports whether the lease ends with its window.
func (w *windowState) endsWithWindow() bool { return w != nil && w.edge }

// leased notes whether a lease ends with its window: then it is shorter than the call asked for.
func (w *windowState) leased(p *Policy, c Call, r lua.Reply) {
	if w != nil {
		w.edge = p.Window == 0 && r.TTLLeft < c.TTL
	}
}

// replied notes what an accepted reply says of when its tokens were counted, and until when.
func (w *windowState) replied(c Call, now time.Duration, r lua.Reply) {
	if w == nil {
		return
	}
	w.clearAt.Store(int64(now + micros(r.Reset)))
	if r.Grant < c.Want {
		w.refuser.Store(uint32(r.Which))
	}
	if r.Grant > 0 || c.Want == 0 {
		w.tightest.Store(uint32(r.Which))
	}
	if w.tells(r.Stamp); r.Stamp > 0 {
		w.stamp.Store(&Stamp{at: r.Stamp, epoch: r.Epoch, cost: r.Grant})
	}
	if c.Debt > 0 {
		w.debts.accepted()
	}
	if s := c.settles; s != nil {
		if s.owed -= c.settledNow; s.owed == 0 {
			w.settle = w.settle[1:]
		}
	}
}

// tells notes the bucket's time as a reply tells it, in µs; 0 if it does not.
func (w *windowState) tells(at int64) {
	if w != nil && at > 0 {
		w.told = at
	}
}

// ahead returns the bucket's time if it waits for the node's clock, and 0 if it does not. The clock
// was set back by so little that the script does not believe it.
func (w *windowState) ahead(server int64) int64 {
	if w == nil || w.told <= server || w.told-server > lua.MaxBack.Microseconds() {
		return 0
	}
	return w.told
}

// sent notes that a call is sent now. If it goes by another calendar than those before, what counts
// ends with its window.
func (w *windowState) sent(now time.Duration, c *Call) {
	if w != nil && c.Policy.At != nil {
		w.counts = min(w.counts, now+micros(c.Phase+c.Period-c.at))
	}
}

// countsUntil notes until when something counts for certain, by a reply to a call that was made in
// a bucket of an epoch. What was granted counts until nothing does, and what refuses counts until
// it does not. For the rest the reply has only an upper bound, which is no help here. A refused
// direct take says nothing: it wrote nothing, and if the key does not know its limits, what refuses
// may end sooner, with the limits of others.
func (w *windowState) countsUntil(c Call, r lua.Reply, epoch int64) {
	if w == nil {
		return
	}
	if c.Ret+c.Refund+c.settledNow > 0 || c.credits > 0 || r.Epoch != epoch {
		w.counts = 0
	}
	switch {
	case r.Grant > 0:
		w.counts = max(w.counts, c.sent+micros(r.Reset))
	case c.named() && c.Want > 0 && r.Retry > 0 && micros(r.Retry) < never-c.sent:
		w.counts = max(w.counts, c.sent+micros(r.Retry))
	}
}

// outdated forgets the debts that count in no window any more, before a call is made, and reports
// them.
func (w *windowState) outdated(p *Policy, now time.Duration, c Conditions) (dropped debt) {
	if w == nil || len(w.debts) == 0 {
		return debt{}
	}
	if !p.Call.Algorithm.Has(lua.Phased) || !c.Clock {
		return w.debts.drop(now - p.window())
	}
	begin, length := c.window(p)
	into := (c.at() - begin) % length
	dropped = w.debts.drop(now - micros(into))
	w.debts.join()
	return dropped
}

// refundAt prepares a refund of n tokens that were counted at a stamp. It reports false if they
// cannot be given back.
func (w *windowState) refundAt(n int64, s *Stamp, algorithm lua.Algorithm) bool {
	switch {
	case w == nil:
	case s == nil: // nothing says where they count
		return false
	case algorithm.Has(lua.Entries):
		if s.cost -= n; s.owed == 0 {
			w.settle = append(w.settle, s)
		}
		s.owed += n
	case w.refund == nil:
		w.refund = s
	case s.epoch != w.refund.epoch: // a call names one bucket, and a new one owes nothing of what the old one counted
		return false
	case s.at < w.refund.at:
		w.refund = s
	}
	return true
}

// refunds returns the stamp of the n tokens that a call refunds, and forgets it, because a refund
// is sent once. A dry run leaves it.
func (w *windowState) refunds(n int64, dry bool) *Stamp {
	if w == nil || n == 0 {
		return nil
	}
	s := w.refund
	if !dry {
		w.refund = nil
	}
	return s
}

// forgetRefunds drops what was to be refunded or settled.
func (w *windowState) forgetRefunds() {
	if w == nil {
		return
	}
	for _, s := range w.settle {
		s.owed = 0
	}
	w.refund, w.settle = nil, nil
}

// forgetDebt drops what was reported and not accepted.
func (w *windowState) forgetDebt() {
	if w != nil {
		w.debts = nil
	}
}
