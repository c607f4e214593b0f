package sim

import (
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// alone is what the auditor keeps of a bucket to hold what it admits without Redis against decision 3 (docs/adr): a process'
// share is debited with all that it admits and never refilled by an outage; what the share has not refilled is owed in any
// case; and the overflow that pays the rest was read when nothing was owed.
//
// The auditor does not see each decision, so it reckons the most that the share may have left.
type alone struct {
	at       time.Duration // of the run, when it was last reckoned
	fleet    int64         // that the last call said
	left     float64       // tokens, the most that the share may have
	spent    int64         // of Redis' tokens
	admitted int64         // without Redis
	told     int64         // admitted, when the last call left

	// What Seen and Epoch of the next call may be: what the last one said, and what was read since.
	read []overflow
}

// overflow is one that a process read, and of which bucket.
type overflow struct{ seen, epoch int64 }

// kept is how many of those are, besides the first: the process has long known what came before.
const kept = 3

// shareRounding is what is forgiven to a share, in tokens: it is whole when it is debited.
const shareRounding = 1

// reckon brings what is known of the share up to date, and reports a share that admits what it cannot have. fleet is the least
// number of processes that divides it; full says that it may be full.
func (s *alone) reckon(at time.Duration, b *local.Bucket, fleet int64, full bool) (v invariant.Finding) {
	p := b.Policy()
	if p.Whole != nil { // a share for several buckets
		return v
	}
	most := float64(part(p, fleet))
	refill := (at - s.at).Seconds() * float64(p.Tokens) / p.Per.Seconds() / float64(fleet)
	t := b.Stats()
	admitted := t.Shared + t.Opened
	shared, spent := float64(admitted-s.admitted), float64(max(0, t.Spent-s.spent))
	if full {
		s.left, shared, spent = most, 0, 0
	}
	asked := p.FailMode == local.FailLocal // fail-open only debits it
	v.Is(asked && shared > s.left+refill+shareRounding, shared-s.left-refill, "a share admits what it does not have")
	least := 0.0
	if asked && spent > 0 || !asked && shared+spent > 0 { // maybe before the refill, when the share had too few to be debited
		least = shareRounding + refill
	}
	s.left = min(most, max(s.left+refill-shared-spent, least))
	s.at, s.spent, s.admitted = at, t.Spent, admitted
	return v
}

// part is what the share of one process holds at most: 1 of a burst that is less than one for each.
func part(p *local.Policy, fleet int64) int64 { return max(p.Cap/fleet, 1) }

// leaves looks at what a call says of it, when it leaves. first says that it is the first of its bucket.
func (s *alone) leaves(at time.Duration, c *lua.Call, b *local.Bucket, first bool) (v invariant.Finding) {
	whole := b.Policy().Whole == nil
	if first {
		s.fleet = c.Fleet
	}
	v = s.reckon(at, b, min(s.fleet, c.Fleet), first)
	t := b.Stats()
	s.fleet, s.told = c.Fleet, t.Shared+t.Opened
	most := part(b.Policy(), c.Fleet)
	s.left = min(s.left, float64(most))
	v.Is(whole && c.Owed > most+shareRounding, float64(c.Owed-most), "more is owed in any case than the share can lack")
	lacks := min(float64(c.Debt), float64(most)-s.left) - shareRounding
	v.Is(whole && float64(c.Owed) < lacks, lacks-float64(c.Owed), "less is owed in any case than the share lacks")
	says := overflow{c.Seen, c.Epoch}
	v.Is(!first && !slices.Contains(s.read, says), 0, "the overflow was not read when nothing was owed")
	s.read = append(s.read[:0], says)
	return v
}

// reads notes what an answer says that was accepted: of a call that told a debt, or before there was one.
func (s *alone) reads(c *lua.Call, r *lua.Reply, b *local.Bucket) {
	t := b.Stats()
	if direct := c.Lease == ""; r.Epoch == 0 || !direct && c.Debt == 0 && t.Shared+t.Opened != s.told {
		return
	}
	if s.read = append(s.read, overflow{r.Overflow, r.Epoch}); len(s.read) > 1+kept {
		s.read = slices.Delete(s.read, 1, 2)
	}
}

// census is what a process heard of how many there are.
type census struct {
	at        time.Duration // of the run
	processes int64
}

// remembered is how long at least the largest of those counts: it is one minute, and the process has its own clock.
const remembered = 59 * time.Second

// counted notes how many processes one has heard that there are.
func (a *audit) counted(process int, processes int64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := time.Since(a.base)
	heard := slices.DeleteFunc(a.heard[process], func(c census) bool { return at-c.at > remembered || c.processes <= processes })
	a.heard[process] = append(heard, census{at, processes})
}

// fleet is the least that a process has to divide by: the most that it heard of in the last minute, but for this instant.
func (a *audit) fleet(process int, at time.Duration) int64 {
	n := max(a.least, 1)
	for _, c := range a.heard[process] {
		if age := at - c.at; time.Microsecond < age && age < remembered {
			n = max(n, c.processes)
		}
	}
	return n
}
