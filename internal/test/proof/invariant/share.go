package invariant

import (
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Share is what a process' part of a limit may have left (decision 3 in docs/adr). The share pays for all that the
// process admits, and no outage refills it. What it has not refilled is owed in any case. The overflow that pays
// the rest was read when nothing was owed.
//
// An observer does not see each decision. So what is left is the most that there may be.
type Share struct {
	Fleet int64 // processes that divide the limit, by the last call

	at       time.Duration // of the last reckoning
	left     float64       // tokens
	spent    int64         // figures then
	fallback int64
	reported int64 // Figures.Fallback when the last call left

	// What Seen and Epoch of the next call may be: what the last call said, and what was read since.
	read []overflow
}

// ShareOf is the limit that a process has a part of.
type ShareOf struct {
	Cap, Tokens int64
	Per         time.Duration
	Asked       bool // a request needs a token of the share; else the share is only debited
}

// Figures are counters that a process reports of a key: tokens that it admitted without the store, and tokens that
// it spent of those that the store granted.
type Figures struct{ Fallback, Spent int64 }

// overflow is one that a process read, and of which bucket.
type overflow struct{ seen, epoch int64 }

// keptOverflows is how many of them are kept, besides the first: the process has long known what came before.
const keptOverflows = 3

// shareRounding is what is forgiven to a share, in tokens: it is whole when it is debited.
const shareRounding = 1

// ShareBurst is what the share of one process holds: 1 of a burst that is less than one for each.
func ShareBurst(burst, fleet int64) int64 { return max(burst/fleet, 1) }

func (l ShareOf) most(fleet int64) float64 { return float64(ShareBurst(l.Cap, fleet)) }

// refill is what one process' share gains.
func (l ShareOf) refill(d time.Duration, fleet int64) float64 {
	return d.Seconds() * float64(l.Tokens) / l.Per.Seconds() / float64(fleet)
}

// Reckon brings what is known of the share up to date, and reports a share that admitted what it cannot have. fleet
// is the least number of processes that divide the limit. full says that the share may be full.
func (s *Share) Reckon(at time.Duration, l ShareOf, now Figures, fleet int64, full bool) (f Finding) {
	refill := l.refill(at-s.at, fleet)
	admitted, spent := float64(now.Fallback-s.fallback), float64(max(0, now.Spent-s.spent))
	if full {
		s.left, admitted, spent = l.most(fleet), 0, 0
	}
	beyond := l.Asked && admitted > s.left+refill+shareRounding
	f.Is(beyond, admitted-s.left-refill, "a share admits what it does not have")
	least := 0.0
	// Before the refill the share may have had too few to be debited.
	if l.Asked && spent > 0 || !l.Asked && admitted+spent > 0 {
		least = shareRounding + refill
	}
	s.left = min(l.most(fleet), max(s.left+refill-admitted-spent, least))
	s.at, s.spent, s.fallback = at, now.Spent, now.Fallback
	return f
}

// Sends checks what a call that is about to leave says of the share. first says that it is the first for its key.
func (s *Share) Sends(at time.Duration, c *lua.Call, l ShareOf, now Figures, first bool) (f Finding) {
	if first {
		s.Fleet = c.Fleet
	}
	f = s.Reckon(at, l, now, min(s.Fleet, c.Fleet), first)
	most := l.most(c.Fleet)
	s.left = min(s.left, most)
	f.Is(float64(c.Owed) > most+shareRounding, float64(c.Owed)-most, "more is owed in any case than the share can lack")
	lacks := min(float64(c.Debt), most-s.left) - shareRounding
	f.Is(float64(c.Owed) < lacks, lacks-float64(c.Owed), "less is owed in any case than the share lacks")
	f.Or(s.Says(c, now, first))
	return f
}

// Says checks the overflow that a call reports.
func (s *Share) Says(c *lua.Call, now Figures, first bool) (f Finding) {
	s.Fleet, s.reported = c.Fleet, now.Fallback
	says := overflow{c.Seen, c.Epoch}
	f.Is(!first && !slices.Contains(s.read, says), 0, "the overflow was not read when nothing was owed")
	s.read = append(s.read[:0], says)
	return f
}

// Reads notes the overflow in a reply that was accepted. It counts if the call reported a debt, or if none came up
// since.
func (s *Share) Reads(c *lua.Call, r *lua.Reply, now Figures) {
	if direct := c.Lease == ""; r.Epoch == 0 || !direct && c.Debt == 0 && now.Fallback != s.reported {
		return
	}
	if s.read = append(s.read, overflow{r.Overflow, r.Epoch}); len(s.read) > 1+keptOverflows {
		s.read = slices.Delete(s.read, 1, 2)
	}
}

// Owes checks the debt that a call reports. owes is what its process admitted without the store and has not
// settled. all says that no other call can report it.
func Owes(c *lua.Call, owes int64, all bool) (f Finding) {
	f.Is(c.Debt > owes, float64(c.Debt-owes), "a process owes more than it admitted alone")
	f.Is(all && c.Debt < owes, float64(owes-c.Debt), "a process owes less than it admitted alone")
	return f
}

// Census is what a process heard of how many processes there are. Those that count fall.
type Census []heard

type heard struct {
	at        time.Duration
	processes int64
}

// remembered is how long at least the largest of those counts: it is ten seconds, and the process has its own clock.
const remembered = 9900 * time.Millisecond

// Hears notes a number that the process heard of.
func (c *Census) Hears(at time.Duration, processes int64) {
	kept := slices.DeleteFunc(*c, func(h heard) bool { return at-h.at > remembered || h.processes <= processes })
	*c = append(kept, heard{at, processes})
}

// Least is the smallest number that the process may divide a limit by: the largest that it heard of in the last
// ten seconds, and no fewer than known. What it heard in this very instant does not count yet.
func (c Census) Least(at time.Duration, known int64) int64 {
	n := max(known, 1)
	for _, h := range c {
		if age := at - h.at; time.Microsecond < age && age < remembered {
			n = max(n, h.processes)
		}
	}
	return n
}
