package sim

import (
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// audit compares both sides of the lease protocol: what Redis stores of each bucket, what each process holds, and what
// is under way between them. A mistake shows in the admissions only when demand needs the token that it made. Here the
// token shows.
//
// The rules are those of package invariant. The audit sees each call that leaves, is executed and returns, and compares
// all pots every [auditInterval]. It changes nothing and takes no virtual time, so a run is the same without it. It
// checks token buckets with one limit.
//
// A nil *audit checks nothing: on the engine Live nobody sees both sides. The methods may be called concurrently.
type audit struct {
	base time.Time

	mu      sync.Mutex
	buckets map[string]*auditedBucket
	holders map[holderKey]*holder
	leases  map[string]int            // which process uses a lease id
	census  map[int]*invariant.Census // by process
	least   int64                     // Options.Processes
	result  measure.Audit
}

// auditInterval is the time between two comparisons of all pots. A lease lasts a second at least. Nothing else is
// planned for the same instants.
const auditInterval = 50*time.Millisecond + 13*time.Microsecond + 7

// holderKey names a process' part of a bucket.
type holderKey struct {
	process int
	bucket  string
}

// holder is what the audit knows of a process' part of a bucket.
type holder struct {
	last     invariant.Numbers
	states   []*localState
	conceded bool // Redis lost its state or its clock moved after the lease was last on record
}

// localState is one local bucket. A key that was evicted and comes back has another.
type localState struct {
	*local.Bucket
	base    time.Time // of its process' clock
	calls   invariant.Caller
	timeout time.Duration // after it the process gives up the call under way
	sent    time.Time     // when the call left

	burnt     int64         // tokens, as of the call before
	safeUntil time.Duration // of the run: tokens in hand do not expire before
	ended     bool          // the lease ended while the last call was under way: its answer does not revive it
	refunded  int64         // tokens that calls reported as refunded

	share invariant.Share
}

func (s *localState) held() int64 {
	live, _ := s.Peek(time.Since(s.base))
	return live
}

// figures returns the numbers that invariant.Share checks.
func (s *localState) figures() invariant.Figures {
	t := s.Stats()
	return invariant.Figures{Fallback: t.Shared + t.Opened, Spent: t.Spent}
}

// shareOf returns the limit of which a process has a share. Fail-open only debits the share. It reports false for a
// shard: all shards of a key have one share.
func shareOf(b *local.Bucket) (of invariant.ShareOf, ok bool) {
	p := b.Policy()
	of = invariant.ShareOf{Cap: p.Cap, Tokens: p.Tokens, Per: p.Per, Asked: p.FailMode == local.FailLocal}
	return of, p.Parent == nil || p.Split
}

func newAudit(base time.Time, least int64) *audit {
	return &audit{
		base: base, buckets: make(map[string]*auditedBucket), holders: make(map[holderKey]*holder),
		leases: make(map[string]int),
		census: make(map[int]*invariant.Census), least: least,
	}
}

// audited reports whether the audit checks such calls.
func audited(c *lua.Call) bool { return c.Algorithm == lua.TokenBucket && len(c.Also) == 0 }

// broken records a rule that did not hold.
func (a *audit) broken(process int, v invariant.Finding) {
	r := &a.result
	if r.Broken++; r.First == "" {
		r.First = fmt.Sprintf("%v process %d: %s", time.Since(a.base).Round(time.Microsecond), process, v.Rule)
	}
	r.Excess = max(r.Excess, v.Excess)
}

// sent checks a call that is about to leave a process: what it states must be true. forgives reports whether the
// process gives up the debts of keys that it evicts, because no store is there to hear of them.
func (a *audit) sent(process int, now time.Duration, c *lua.Call, b *local.Bucket, forgives func() bool) {
	if a == nil || !audited(c) || c.Lease == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Looks++
	v := invariant.Finding{}
	owner, ok := a.leases[c.Lease]
	v.Is(ok && owner != process, 0, "two processes have one lease id")
	a.leases[c.Lease] = process
	at := holderKey{process, c.Bucket}
	h := a.holders[at]
	if h == nil {
		h = &holder{}
		a.holders[at] = h
	}
	s := h.of(b, time.Now().Add(-now))
	if s.calls.Waits() && time.Since(s.sent) >= b.Policy().Timeout {
		s.calls.GivesUp()
	}
	first := s.calls.Fresh(c)
	v.Or(s.calls.Sends(c, &h.last))
	when := time.Since(a.base)
	v.Or(invariant.Holds(c, h.held(), a.covered(at, c.Lease, when), h.conceded))
	t := b.Stats()
	owes := t.Shared + t.Opened - t.Settled
	v.Or(invariant.Owes(c, owes, c.Debt < owes && len(h.states) == 1 && !forgives())) // forgives looks at all keys
	// What a refund lost is burnt too.
	kept := when < s.safeUntil && !s.ended && s.refunded == 0 && !h.conceded
	v.Is(kept && t.Burnt > s.burnt, float64(t.Burnt-s.burnt), "a process burnt what its lease still covers")
	twice := s.refunded - t.Returned - t.Burnt
	v.Is(twice > 0, float64(twice), "a process refunds a token twice")
	if of, ok := shareOf(b); ok {
		few := c.Fleet < a.leastProcesses(process, when)
		v.Is(few, 0, "a process shares the limit with fewer than it heard of in the last ten seconds")
		v.Or(s.share.Sends(when, c, of, s.figures(), first))
	} else {
		v.Or(s.share.Says(c, s.figures(), first))
	}
	s.burnt, s.refunded, s.ended = t.Burnt, s.refunded+c.Refund, false
	// its record may be this call's from now on, and nobody hear of that
	s.safeUntil = min(s.safeUntil, safeUntil(when, c))
	if v.Rule != "" {
		a.broken(process, v)
	}
	s.sent, s.timeout = time.Now(), b.Policy().Timeout
}

// of returns the state of a local bucket, and drops older states that hold nothing.
func (h *holder) of(b *local.Bucket, base time.Time) *localState {
	kept := h.states[:0]
	var s *localState
	for _, x := range h.states {
		if x.Bucket == b {
			s = x
		} else if x.held() == 0 && !x.calls.Waits() {
			continue
		}
		kept = append(kept, x)
	}
	if h.states = kept; s == nil {
		s = &localState{Bucket: b, base: base}
		h.states = append(h.states, s)
	}
	return s
}

// held adds up what all states of a key hold.
func (h *holder) held() (sum int64) {
	for _, s := range h.states {
		sum += s.held()
	}
	return sum
}

// returned records what the process hears of its calls.
func (a *audit) returned(process int, calls []lua.Call, results []remote.Result) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range calls {
		c, r := &calls[i], &results[i]
		h := a.holders[holderKey{process, c.Bucket}]
		if h == nil {
			continue
		}
		code := r.Reply.Code
		answered := r.Err == nil && (code == lua.Granted || code == lua.Denied || code == lua.Replay)
		for _, s := range h.states {
			if c.Lease == "" && answered {
				s.share.Reads(c, &r.Reply, s.figures())
			}
			if c.Lease == "" || !s.calls.For(c.Seq) {
				continue
			}
			// A process that stands still counts from when it wanted to send.
			if !answered || time.Since(s.sent) >= s.timeout {
				s.calls.GivesUp()
			} else {
				s.calls.Accepts()
				s.share.Reads(c, &r.Reply, s.figures())
				s.ended = s.safeUntil > 0 && time.Since(a.base) >= s.safeUntil
				if x := a.buckets[c.Bucket]; x != nil && x.Records[c.Lease].Seq == c.Seq { // a call's Seq is never 0
					// a process counts from the sending on, Redis from later
					s.safeUntil = safeUntil(s.sent.Sub(a.base), c)
				}
			}
		}
	}
}

// execute runs a call with do and checks what Redis made of it. do reports false if there is no reply.
func (a *audit) execute(on hashReader, process int, c *lua.Call, do func() (lua.Reply, bool)) {
	if a == nil || !audited(c) {
		do()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.Since(a.base)
	x := a.buckets[c.Bucket]
	if x == nil {
		x = &auditedBucket{until: make(map[string]time.Duration)}
		a.buckets[c.Bucket] = x
	}
	if x.stale {
		x.reload(on, c.Bucket, at)
	}
	r, ok := do()
	if !ok {
		return
	}
	h := a.holders[holderKey{process, c.Bucket}]
	conceded := h == nil || h.conceded || h.last.Lease != c.Lease
	v := x.check(on, c, &r, at, conceded)
	a.result.Looks++
	newest := c.Lease != "" && h != nil && h.last == invariant.Numbers{Lease: c.Lease, Seq: c.Seq}
	if newest && (r.Code == lua.Granted || r.Code == lua.Denied) {
		v.Or(invariant.Covered(h.held(), c.Hold))
		h.conceded = false
	}
	if v.Rule != "" {
		a.broken(process, v)
	}
}

// comparePots compares all pots with what Redis keeps for them. What is wrong at one instant counts once.
func (a *audit) comparePots() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.Since(a.base)
	a.result.Looks++
	who, worst := 0, invariant.Finding{}
	worse := func(process int, f invariant.Finding) {
		if f.Excess > worst.Excess || f.Excess == worst.Excess && f.Excess > 0 && process < who {
			who, worst = process, f
		}
	}
	for place, h := range a.holders {
		for _, s := range h.states {
			if of, ok := shareOf(s.Bucket); ok {
				fleet := min(s.share.Fleet, a.leastProcesses(place.process, at))
				worse(place.process, s.share.Reckon(at, of, s.figures(), fleet, false))
			}
		}
		live := h.held()
		if live == 0 || h.conceded {
			continue
		}
		worse(place.process, invariant.Covered(live, a.covered(place, h.last.Lease, at)))
	}
	if worst.Rule != "" {
		a.broken(who, worst)
	}
}

// safeUntil returns the time before which no process may take a lease for ended that a call at a time prolonged. A
// process uses 99 % of a lease.
func safeUntil(at time.Duration, c *lua.Call) time.Duration {
	return at + time.Duration(c.TTL)*time.Microsecond*49/50
}

// covered returns the tokens that Redis keeps for a lease.
func (a *audit) covered(place holderKey, lease string, at time.Duration) int64 {
	if x := a.buckets[place.bucket]; x != nil && x.until[lease] > at {
		return x.Records[lease].Out
	}
	return 0
}

// counted records how many processes there are, as one process was told.
func (a *audit) counted(process int, processes int64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.census[process] == nil {
		a.census[process] = new(invariant.Census)
	}
	a.census[process].Hears(time.Since(a.base), processes)
}

// leastProcesses returns the smallest number by which a process may divide a limit.
func (a *audit) leastProcesses(process int, at time.Duration) int64 {
	var heard invariant.Census
	if c := a.census[process]; c != nil {
		heard = *c
	}
	return heard.Least(at, a.least)
}

// storeLost records that Redis may have forgotten anything. What a process holds is not checked until its next record.
func (a *audit) storeLost() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.concede()
	for _, x := range a.buckets {
		x.stale = true
	}
}

// clockMoved records that the clock of Redis was set ahead. Redis may end leases that are in use, and end keys early;
// they do not come back when the clock is set back.
func (a *audit) clockMoved(ahead time.Duration) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.concede()
	for _, x := range a.buckets {
		x.at -= ahead
	}
}

func (a *audit) concede() {
	for _, h := range a.holders {
		h.conceded = true
	}
}

// processEnded forgets a process that crashed or left. One that left in good order has returned everything.
func (a *audit) processEnded(process int, inOrder bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Looks++
	at := time.Since(a.base)
	worst := invariant.Finding{}
	for place, h := range a.holders {
		if place.process != process {
			continue
		}
		if out := a.covered(place, h.last.Lease, at); inOrder && !h.conceded && float64(out) > worst.Excess {
			worst = invariant.Finding{
				Rule:   "a process left in good order, and not all that it had",
				Excess: float64(out),
			}
		}
		delete(a.holders, place)
	}
	if worst.Rule != "" {
		a.broken(process, worst)
	}
}

// verdict returns the result. All figures are −1 if nothing was checked.
func (a *audit) verdict() measure.Audit {
	if a == nil {
		return measure.Audit{Broken: -1, Looks: -1, Excess: -1}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.result
}
