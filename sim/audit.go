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

// audit looks at both sides of the lease protocol, as nobody in a service can: at what Redis stores of each bucket,
// at what each process holds, and at what is under way between them. A mistake shows in what is admitted only when
// demand needs the token that it made. Here the token shows.
//
// The rules are those of package invariant. The audit only watches: each call that leaves, is executed and returns,
// and all pots every so often. It changes nothing and no time goes by, so a run is the same without it. It watches
// token buckets with one limit.
//
// A nil *audit watches nothing: on the engine Live nobody sees both sides. Its methods may be called concurrently.
type audit struct {
	base time.Time

	mu       sync.Mutex
	accounts map[string]*account
	holders  map[holding]*holder
	leases   map[string]int            // which process has a lease id
	heard    map[int]*invariant.Census // by process
	least    int64                     // processes, that all of them know of: Options.Processes
	result   measure.Audit
}

// auditEvery is how far apart the looks at all pots are: a lease lasts a second at least. It meets no instant at which
// something else is planned.
const auditEvery = 50*time.Millisecond + 13*time.Microsecond + 7

// holding is a process' part of a bucket.
type holding struct {
	process int
	bucket  string
}

// holder is what the auditor keeps of it.
type holder struct {
	last     invariant.Numbers
	states   []*state
	conceded bool // Redis lost what it knew, or moved its clock, since the lease was last on record there
}

// state is one local bucket: a key that was forgotten and comes back has another.
type state struct {
	*local.Bucket
	base    time.Time // of its process' clock
	calls   invariant.Caller
	timeout time.Duration // until its process hears of the call under way
	sent    time.Time     // when that left

	burnt    int64         // tokens, by the call before
	safe     time.Duration // of the run: what is held does not end before
	ended    bool          // it did, while the call before was under way: then it does not live again with the answer
	refunded int64         // tokens that calls said are refunded

	share invariant.Share
}

func (s *state) live() int64 {
	live, _ := s.Peek(time.Since(s.base))
	return live
}

// figures are what it reports.
func (s *state) figures() invariant.Figures {
	t := s.Stats()
	return invariant.Figures{Fallback: t.Shared + t.Opened, Spent: t.Spent}
}

// shareOf is the limit that a process has a share of. Fail-open only debits it. It reports false if the bucket is a
// part of a larger one: those have a share together.
func shareOf(b *local.Bucket) (of invariant.ShareOf, ok bool) {
	p := b.Policy()
	of = invariant.ShareOf{Cap: p.Cap, Tokens: p.Tokens, Per: p.Per, Asked: p.FailMode == local.FailLocal}
	return of, p.Parent == nil
}

func newAudit(base time.Time, least int64) *audit {
	return &audit{
		base: base, accounts: make(map[string]*account), holders: make(map[holding]*holder), leases: make(map[string]int),
		heard: make(map[int]*invariant.Census), least: least,
	}
}

// audited reports whether the audit watches such calls.
func audited(c *lua.Call) bool { return c.Algorithm == lua.TokenBucket && len(c.Also) == 0 }

// wrong notes that a rule did not hold.
func (a *audit) wrong(process int, v invariant.Finding) {
	r := &a.result
	if r.Broken++; r.First == "" {
		r.First = fmt.Sprintf("%v process %d: %s", time.Since(a.base).Round(time.Microsecond), process, v.Rule)
	}
	r.Excess = max(r.Excess, v.Excess)
}

// sent looks at a call that is about to leave a process. What it says must be true. forgives reports whether the
// process gives up what the keys that it forgets owe, because no store is there to hear of it.
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
	at := holding{process, c.Bucket}
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
	v.Or(invariant.Holds(c, h.live(), a.cover(at, c.Lease, when), h.conceded))
	t := b.Stats()
	owes := t.Shared + t.Opened - t.Settled
	v.Or(invariant.Owes(c, owes, c.Debt < owes && len(h.states) == 1 && !forgives())) // forgives looks at all keys
	// What a refund lost is burnt too.
	kept := when < s.safe && !s.ended && s.refunded == 0 && !h.conceded
	v.Is(kept && t.Burnt > s.burnt, float64(t.Burnt-s.burnt), "a process burnt what its lease still covers")
	twice := s.refunded - t.Returned - t.Burnt
	v.Is(twice > 0, float64(twice), "a process refunds a token twice")
	if of, ok := shareOf(b); ok {
		few := c.Fleet < a.fleet(process, when)
		v.Is(few, 0, "a process shares the limit with fewer than it heard of in the last minute")
		v.Or(s.share.Sends(when, c, of, s.figures(), first))
	} else {
		v.Or(s.share.Says(c, s.figures(), first))
	}
	s.burnt, s.refunded, s.ended = t.Burnt, s.refunded+c.Refund, false
	s.safe = min(s.safe, safe(when, c)) // its record may be this call's from now on, and nobody hear of that
	if v.Rule != "" {
		a.wrong(process, v)
	}
	s.sent, s.timeout = time.Now(), b.Policy().Timeout
}

// of finds the state of a bucket, and forgets those before it that hold nothing.
func (h *holder) of(b *local.Bucket, base time.Time) *state {
	kept := h.states[:0]
	var s *state
	for _, x := range h.states {
		if x.Bucket == b {
			s = x
		} else if x.live() == 0 && !x.calls.Waits() {
			continue
		}
		kept = append(kept, x)
	}
	if h.states = kept; s == nil {
		s = &state{Bucket: b, base: base}
		h.states = append(h.states, s)
	}
	return s
}

// live is what all states of a key hold together.
func (h *holder) live() (sum int64) {
	for _, s := range h.states {
		sum += s.live()
	}
	return sum
}

// returned notes what became of calls, when the process hears of it.
func (a *audit) returned(process int, calls []lua.Call, results []remote.Result) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range calls {
		c, r := &calls[i], &results[i]
		h := a.holders[holding{process, c.Bucket}]
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
				s.ended = s.safe > 0 && time.Since(a.base) >= s.safe
				if x := a.accounts[c.Bucket]; x != nil && x.Records[c.Lease].Seq == c.Seq { // a call's Seq is never 0
					s.safe = safe(s.sent.Sub(a.base), c) // a process counts from the sending on, Redis from later
				}
			}
		}
	}
}

// execute has Redis execute a call, and looks at what it made of it. do reports the reply, unless there is none.
func (a *audit) execute(on shelf, process int, c *lua.Call, do func() (lua.Reply, bool)) {
	if a == nil || !audited(c) {
		do()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.Since(a.base)
	x := a.accounts[c.Bucket]
	if x == nil {
		x = &account{until: make(map[string]time.Duration)}
		a.accounts[c.Bucket] = x
	}
	if x.lost {
		x.load(on, c.Bucket, at)
	}
	r, ok := do()
	if !ok {
		return
	}
	h := a.holders[holding{process, c.Bucket}]
	conceded := h == nil || h.conceded || h.last.Lease != c.Lease
	v := x.executed(on, c, &r, at, conceded)
	a.result.Looks++
	newest := c.Lease != "" && h != nil && h.last == invariant.Numbers{Lease: c.Lease, Seq: c.Seq}
	if newest && (r.Code == lua.Granted || r.Code == lua.Denied) {
		v.Or(invariant.Covered(h.live(), c.Hold))
		h.conceded = false
	}
	if v.Rule != "" {
		a.wrong(process, v)
	}
}

// look compares all pots with what Redis keeps for them. What is wrong at one instant counts once.
func (a *audit) look() {
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
				fleet := min(s.share.Fleet, a.fleet(place.process, at))
				worse(place.process, s.share.Reckon(at, of, s.figures(), fleet, false))
			}
		}
		live := h.live()
		if live == 0 || h.conceded {
			continue
		}
		worse(place.process, invariant.Covered(live, a.cover(place, h.last.Lease, at)))
	}
	if worst.Rule != "" {
		a.wrong(who, worst)
	}
}

// safe is until when no process may take a lease for over that a call at a time prolonged: it uses 99 % of each.
func safe(at time.Duration, c *lua.Call) time.Duration {
	return at + time.Duration(c.TTL)*time.Microsecond*49/50
}

// cover is what Redis keeps for a lease.
func (a *audit) cover(place holding, lease string, at time.Duration) int64 {
	if x := a.accounts[place.bucket]; x != nil && x.until[lease] > at {
		return x.Records[lease].Out
	}
	return 0
}

// counted notes how many processes one has heard that there are.
func (a *audit) counted(process int, processes int64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.heard[process] == nil {
		a.heard[process] = new(invariant.Census)
	}
	a.heard[process].Hears(time.Since(a.base), processes)
}

// fleet is the smallest number that a process may divide a limit by.
func (a *audit) fleet(process int, at time.Duration) int64 {
	var heard invariant.Census
	if c := a.heard[process]; c != nil {
		heard = *c
	}
	return heard.Least(at, a.least)
}

// lost notes that Redis may have forgotten anything. What processes hold is not held against it until it is on
// record again.
func (a *audit) lost() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.concede()
	for _, x := range a.accounts {
		x.lost = true
	}
}

// moved notes that the clock of Redis was set ahead: it may think leases over that are in use, and end keys before
// their time, which do not come back when it is set back.
func (a *audit) moved(ahead time.Duration) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.concede()
	for _, x := range a.accounts {
		x.at -= ahead
	}
}

func (a *audit) concede() {
	for _, h := range a.holders {
		h.conceded = true
	}
}

// gone forgets a process that died, or left: one that left in good order has given everything back.
func (a *audit) gone(process int, inOrder bool) {
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
		if out := a.cover(place, h.last.Lease, at); inOrder && !h.conceded && float64(out) > worst.Excess {
			worst = invariant.Finding{Rule: "a process left in good order, and not all that it had", Excess: float64(out)}
		}
		delete(a.holders, place)
	}
	if worst.Rule != "" {
		a.wrong(process, worst)
	}
}

// verdict is what the audit came to, −1 where nothing was seen.
func (a *audit) verdict() measure.Audit {
	if a == nil {
		return measure.Audit{Broken: -1, Looks: -1, Excess: -1}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.result
}
