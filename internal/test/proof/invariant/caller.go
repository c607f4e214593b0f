package invariant

import (
	"fmt"
	"math"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Caller follows the calls of a lease for one key, and which replies were accepted. There is one
// for each state that a process has of a key: a key that was forgotten and comes back has another.
type Caller struct {
	lease string
	ack   int64 // the last call that was accepted, or what came before the first
	call  int64 // under way; 0: none
}

// Numbers is the last number that a process gave to a call of a key, whatever state it had.
type Numbers struct {
	Lease string
	Seq   int64
}

// Sends checks a call of a lease that is about to leave.
func (t *Caller) Sends(c *lua.Call, last *Numbers) (f Finding) {
	fresh := t.lease != c.Lease
	f.Is(last.Lease == c.Lease && c.Seq <= last.Seq, 0, "a call is not newer than the one before of its lease")
	f.Is(t.call != 0, 0, "two calls of one key are under way")
	f.Is(!fresh && c.Ack != t.ack, 0, "a call does not acknowledge what was accepted last")
	f.Is(fresh && c.Ack != c.Seq-1, 0, "a fresh state does not say that all before it is spent")
	f.Is(c.Deadline == 0, 0, "a call of a lease has no deadline")
	f.Is(c.Ret > 0 && c.Hold > 0, 0, "a call returns a part of what it holds")
	if fresh {
		t.lease, t.ack = c.Lease, c.Ack
	}
	t.call, *last = c.Seq, Numbers{c.Lease, c.Seq}
	return f
}

// Accepts notes that the reply to the call under way was accepted.
func (t *Caller) Accepts() { t.ack, t.call = t.call, 0 }

// GivesUp notes that whatever reply comes to the call under way is too late, or says no.
func (t *Caller) GivesUp() { t.call = 0 }

// Holds checks what a call says that its caller holds. live is what the caller can spend, and out
// what is on record for it. conceded says that it may hold what the store forgot, or took for over.
func Holds(c *lua.Call, live, out int64, conceded bool) (f Finding) {
	f.Is(c.Hold > out && !conceded, float64(c.Hold-out), "a process holds more than its record covers")
	f.Is(live > c.Hold, float64(live-c.Hold), "a process says that it holds less than it does")
	return f
}

// Covered checks that what a process can spend is on record for it.
func Covered(spendable, out int64) (f Finding) {
	f.Is(spendable > out, float64(spendable-out), "a process can spend more than its record covers")
	return f
}

// ShareBurst is what the share of one process holds: 1 of a burst that is less than one for each.
func ShareBurst(burst, fleet int64) int64 { return max(burst/fleet, 1) }

// Told checks what a caller is told whom a window refuses at a time of the bucket: no later time
// than the first of the ends of leases in which others hold tokens, because by then they may be
// given back, nor than that when nothing counts any more. It does not know of clocks that were set.
func Told(c *lua.Call, r *lua.Reply, now int64, ends map[string]int64) (f Finding) {
	if c.Algorithm != lua.FixedWindow && c.Algorithm != lua.SlidingWindow || r.Code != lua.Denied {
		return f
	}
	for id, end := range ends {
		late := id != c.Lease && end > now && r.Now+r.Retry > end
		f.Is(late, 0, "%q is told to come back in %d µs, and the lease of %q ends in %d", c.Lease, r.Retry, id, end-r.Now)
	}
	f.Is(r.Reset > 0 && r.Retry > r.Reset, 0, "%q is told to come back in %d µs, and nothing counts in %d", c.Lease, r.Retry, r.Reset)
	return f
}

// Ledger is what a process did with the tokens that the store granted it.
type Ledger struct{ Granted, Spent, Returned, Burnt, Held int64 }

// Check reports a token that is in no place, or in two. late are tokens that came back after their
// ledger was closed: they make Spent too small here.
func (l Ledger) Check(late int64) (f Finding) {
	all := l.Spent + l.Returned + l.Burnt + l.Held
	f.Is(l.Granted != all, float64(l.Granted-all), "the ledger does not balance: %+v", l)
	f.Is(min(l.Spent+late, l.Returned, l.Burnt, l.Held) < 0, 0, "less than nothing is in the ledger: %+v", l)
	return f
}

// Finding is a rule that did not hold. Its zero value is that all did.
type Finding struct {
	Rule   string
	Excess float64 // tokens by which it was broken, ≥ 0; 0 if the rule is about something else
}

// Broken reports whether a rule did not hold.
func (f *Finding) Broken() bool { return f.Rule != "" }

// Is notes a rule that does not hold if wrong is true. The first one that is noted stays.
func (f *Finding) Is(wrong bool, excess float64, format string, args ...any) {
	if wrong && f.Rule == "" {
		f.Rule, f.Excess = fmt.Sprintf(format, args...), math.Abs(excess)
	}
}

// Or takes another finding if there is none yet.
func (f *Finding) Or(other Finding) {
	if f.Rule == "" {
		*f = other
	}
}

func (f Finding) String() string { return fmt.Sprintf("%s (by %v tokens)", f.Rule, f.Excess) }
