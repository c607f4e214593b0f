package legal

import (
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// book is what happened to one key of one policy. World.mu guards it.
type book struct {
	policy, key int
	base        time.Time
	rules       tiered.Policy
	life        time.Duration // of a lease, at most
	terms       []term        // of the limit that changes
	open        map[int]int   // by slot: its term
	phase       time.Duration // where a fixed window begins, of the store's clock
	moves       []move        // of the store's clock
	leased      bool          // tokens were; while they are out, a bucket does not refill into their room

	fillers map[*process]bool // who gave something back, or filled it

	sure    []ideal.Admission // by Redis' tokens
	credits []ideal.Credit    // what came back, or is conceded
	spent   []spending        // all that may have been taken
}

// term is a limit for as long as it was in force: from the moment a process had it, until that process' first call by
// the next one.
type term struct {
	tiered.Limit
	from, closed, until time.Duration
	slot                int
}

// spending is tokens that may have been taken; negative ones came back.
type spending struct {
	at, of time.Duration // of is when what comes back was taken
	n      int64
}

// move is a step of the store's clock.
type move struct{ at, by time.Duration }

const (
	never = time.Duration(math.MaxInt64)

	// back is how long what is given back may be under way: a call is wanted for a lease's life at most, and is sent
	// within 50 ms.
	back = 3 * second
)

func newBook(base time.Time, policy, key int, p tiered.Policy, timeout time.Duration, calm bool) *book {
	period := p.Lease.Period
	if period == 0 {
		period = tiered.DefaultPeriod
	}
	if !calm {
		period *= 4 // where calls take long, leases do
	}
	return &book{
		base: base, policy: policy, key: key, rules: p, life: max(4*period, second, 2*timeout), open: make(map[int]int),
		fillers: make(map[*process]bool),
	}
}

// inForce notes what a process has for a limit from now on. Unlimited and Blocked put none in force, and end none: what
// was taken by the limit before goes back by it.
func (b *book) inForce(slot int, now time.Duration, l tiered.Limit) {
	if l == tiered.Unlimited || l == tiered.Blocked {
		return
	}
	if i, ok := b.open[slot]; ok {
		if b.terms[i].Limit == l {
			return
		}
		b.terms[i].closed = now
	}
	b.open[slot] = len(b.terms)
	b.terms = append(b.terms, term{l, now, never, never, slot})
}

// executed notes that the store did what a process asked for.
func (b *book) executed(slot int, sent, now time.Duration, c *lua.Call, grant int64) {
	b.leased = b.leased || c.Lease != "" && grant > 0
	if b.rules.Algorithm == tiered.FixedWindow {
		b.phase = time.Duration(c.Phase) * time.Microsecond
	}
	if b.rules.Shards > 1 {
		return // its other shards may not know yet
	}
	for i := range b.terms {
		if t := &b.terms[i]; t.slot == slot && t.closed < sent && t.until == never && !b.by(t, c) {
			t.until = now
		}
	}
}

// by reports whether a call may be one by a term: a key that nobody asks for gives back by the limit that it had.
func (b *book) by(t *term, c *lua.Call) bool {
	if c.Cap != burst(t.Limit) {
		return false
	}
	switch b.rules.Algorithm {
	case tiered.SlidingWindow:
		return c.Period == precision(t.Limit).Microseconds()
	case tiered.TokenBucket:
		return c.Tokens == t.Tokens && c.Period == t.Per.Microseconds()
	}
	return c.Period == t.Per.Microseconds()
}

func (b *book) admitted(before, after time.Duration, n int64, sure bool) {
	if sure {
		b.sure = append(b.sure, ideal.Admission{Before: int64(before), After: int64(after), Tokens: n})
	}
	b.spent = append(b.spent, spending{after, after, n})
}

// settled notes that a request turned out to have cost another number.
func (b *book) settled(now, of time.Duration, cost, actual int64) {
	if actual < cost {
		b.credit(now, now+max(back, b.life), cost-actual)
		b.spent = append(b.spent, spending{now, of, actual - cost})
	} else {
		b.spent = append(b.spent, spending{now, now, actual - cost})
	}
}

// vain notes that a request may have been granted tokens that it did not use: another key refused, or it had left. They
// come back.
func (b *book) vain(before, after time.Duration, n int64) {
	b.credit(before, after+max(back, b.life), n)
}

func (b *book) credit(from, to time.Duration, n int64) {
	b.credits = append(b.credits, ideal.Credit{From: int64(from), To: int64(to), Tokens: n})
}

// reset notes that an operator filled the bucket, or may have.
func (b *book) reset(before, after time.Duration) {
	b.credit(before, after+max(back, b.life), b.most())
}

// accident notes one, that costs so many tokens; a burst at most.
func (b *book) accident(now time.Duration, n int64) { b.credit(now, now+b.life, min(n, b.most())) }

// moved notes a step of the store's clock. One ahead costs what the time brings.
func (b *book) moved(now, by time.Duration) {
	b.moves = append(b.moves, move{now, by})
	if by > 0 {
		b.accident(now, math.MaxInt64)
	}
}

// most is the largest burst of all limits there were.
func (b *book) most() (most int64) {
	for _, t := range b.terms {
		most = max(most, burst(t.Limit))
	}
	for _, l := range b.rules.Also {
		most = max(most, burst(l))
	}
	return most
}

// limits are those that the key has, each as its terms.
func (b *book) limits() [][]term {
	all := [][]term{b.terms}
	for _, l := range b.rules.Also {
		all = append(all, []term{{l, 0, never, never, 0}})
	}
	return all
}

// over reports by how much the worst interval exceeds a limit, and which that is.
func (b *book) over(terms []term) (tokens float64, where string) {
	switch b.rules.Algorithm {
	case tiered.TokenBucket:
		return b.overBucket(terms)
	case tiered.FixedWindow:
		return b.overFixed(terms)
	}
	return b.overSliding(terms)
}

// overBucket holds what was admitted against an ideal bucket. Time is told by what the largest rate in force brings, so
// that a rate that changes is one that does not. A smaller burst is held against what came once no lease of a larger
// one lived.
func (b *book) overBucket(terms []term) (worst float64, where string) {
	if len(b.sure) == 0 {
		return 0, ""
	}
	last := time.Duration(0)
	for _, a := range b.sure {
		last = max(last, time.Duration(a.After))
	}
	for _, c := range b.credits {
		last = max(last, time.Duration(c.To))
	}
	f := newFlow(terms, last+1)
	if f == nil {
		return 0, ""
	}
	worst = math.Inf(-1)
	for _, t := range terms {
		for from, to := alone(terms, t, 0, b.life); from < never; from, to = alone(terms, t, to, b.life) {
			if e := b.worst(f, from, to, burst(t.Limit)); e.Over > worst {
				worst, where = e.Over, f.describe(e)
			}
		}
	}
	return worst - f.error(), where
}

// alone is the next span, not before from, in which no burst larger than t's is in force and no lease of one lives.
func alone(terms []term, t term, from, life time.Duration) (start, end time.Duration) {
	start, end = from, never
	for moved := true; moved; {
		moved = false
		for _, x := range terms {
			if burst(x.Limit) > burst(t.Limit) && x.from <= start && start < after(x.until, life) {
				start, moved = after(x.until, life), true
			}
		}
	}
	for _, x := range terms {
		if burst(x.Limit) > burst(t.Limit) && x.from > start {
			end = min(end, x.from)
		}
	}
	return start, end
}

func after(t, d time.Duration) time.Duration {
	if t > never-d {
		return never
	}
	return t + d
}

// worst is the worst interval within a span.
func (b *book) worst(f *flow, from, to time.Duration, burst int64) ideal.Excess {
	var sure []ideal.Admission
	var credits []ideal.Credit
	for _, a := range b.sure {
		if time.Duration(a.Before) >= from && time.Duration(a.After) < to {
			sure = append(sure, ideal.Admission{Before: f.at(a.Before), After: f.at(a.After) + 1, Tokens: a.Tokens})
		}
	}
	for _, c := range b.credits {
		credits = append(credits, ideal.Credit{From: f.at(c.From), To: f.at(c.To) + 1, Tokens: c.Tokens})
	}
	return ideal.WorstNet(sure, credits, 1, time.Duration(f.unit), burst)
}

// overFixed holds each window against the largest limit in force. One that a step of the clock cuts is nobody's.
func (b *book) overFixed(terms []term) (worst float64, where string) {
	start := b.wall()
	per := b.rules.Limit.Per
	worst = math.Inf(-1)
	for i := range len(b.moves) + 1 {
		from, to := time.Duration(0), never
		if i > 0 {
			from = b.moves[i-1].at
			start += b.moves[i-1].by
		}
		if i < len(b.moves) {
			to = b.moves[i].at
		}
		windows := map[int64]bool{}
		for _, a := range b.sure {
			windows[floorDiv(int64(start)+a.Before-int64(b.phase), int64(per))] = true
		}
		for n := range windows {
			first := time.Duration(n*int64(per)+int64(b.phase)) - start
			if i > 0 && first < from || first+per > to {
				continue
			}
			if over := b.within(terms, first, first+per); over > worst {
				worst, where = over, "the window from "+first.String()
			}
		}
	}
	return worst, where
}

// wall is what the store's clock showed at the beginning, since 1970, less all whole windows.
func (b *book) wall() time.Duration {
	return time.Duration(b.base.UnixNano() % int64(b.rules.Limit.Per))
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

// overSliding holds each interval against the largest limit that was in force, by the shortest length.
func (b *book) overSliding(terms []term) (worst float64, where string) {
	longest := time.Duration(0)
	for _, t := range terms {
		longest = max(longest, t.Per)
	}
	worst = math.Inf(-1)
	for i, a := range b.sure {
		if i > 0 && b.sure[i-1].Before == a.Before {
			continue
		}
		from := time.Duration(a.Before)
		per := longest
		for _, t := range terms {
			if t.from <= after(from, longest) && after(t.until, b.life) >= from {
				per = min(per, t.Per)
			}
		}
		if over := b.within(terms, from, after(from, per)); over > worst {
			worst, where = over, "the interval from "+from.String()
		}
	}
	return worst, where
}

// within is by how much what was admitted in an interval, its end not included, exceeds the largest limit that was in
// force.
func (b *book) within(terms []term, from, to time.Duration) float64 {
	most, sum := int64(0), int64(0)
	for _, t := range terms {
		if t.from <= to && after(t.until, b.life) >= from {
			most = max(most, t.Tokens)
		}
	}
	for _, a := range b.sure {
		if time.Duration(a.Before) >= from && time.Duration(a.After) < to {
			sum += a.Tokens
		}
	}
	for _, c := range b.credits {
		if time.Duration(c.From) <= to && time.Duration(c.To) >= from {
			sum -= c.Tokens
		}
	}
	return float64(sum - most)
}

// fills notes that a process gives tokens back, or may.
func (b *book) fills(p *process) { b.fillers[p] = true }

// filled reports whether a process may see a bucket that is fuller than it can know: another gave something back, or had
// another limit.
func (b *book) filled(p *process) bool {
	for other := range b.fillers {
		if other != p {
			return true
		}
	}
	return len(b.open) > 1 && slices.ContainsFunc(b.terms, func(t term) bool { return t.Limit != b.terms[0].Limit })
}

// left is what must be there in the end, at least: what is given back counts at once, for then most of it is lost to a
// full burst that is full; of all limits, the slowest rate and the smallest burst that were in force. What is given back of
// a leased sliding window may be lost: it comes off the block of its grant, and a settlement may have counted it in a later.
func (b *book) left(now time.Duration, burnt int64) int64 {
	least := int64(math.MaxInt64)
	lowered := slices.ContainsFunc(b.terms, func(t term) bool { return burst(t.Limit) < b.most() })
	if b.rules.Shards > 1 && (lowered || len(b.rules.Also) > 0) {
		return 0 // one shard may be short of what another has too much of
	}
	if b.leased && b.rules.Algorithm == tiered.SlidingWindow {
		b.spent = slices.DeleteFunc(b.spent, func(x spending) bool { return x.n < 0 })
	}
	slices.SortStableFunc(b.spent, func(x, y spending) int { return int(x.at - y.at) })
	for _, terms := range b.limits() {
		least = min(least, b.leftOf(terms, now)-burnt)
	}
	return least
}

func (b *book) leftOf(terms []term, now time.Duration) int64 {
	smallest := func(from, to time.Duration) (cap int64, rate float64) {
		cap, rate = math.MaxInt64, math.Inf(1)
		for _, t := range terms {
			if t.from <= to && t.until >= from {
				cap, rate = min(cap, burst(t.Limit)), min(rate, float64(t.Tokens)/float64(t.Per))
			}
		}
		return cap, rate
	}
	if b.rules.Algorithm != tiered.TokenBucket {
		longest := time.Duration(0)
		for _, t := range terms {
			longest = max(longest, t.Per+2*precision(t.Limit))
		}
		if len(b.moves) > 0 {
			longest = now // how long ago it was that a clock was set back, nobody knows: it may all still count
		}
		left, _ := smallest(now-min(longest, now), now)
		for _, x := range b.spent {
			if after(x.of, longest) >= now {
				left -= x.n
			}
		}
		return left
	}
	first, _ := smallest(0, 0)
	level, last := float64(first), time.Duration(0)
	for _, x := range append(slices.Clone(b.spent), spending{at: now}) {
		// In steps, for a limit in force for a moment is not for all the time.
		for at := last; at < x.at; {
			next := x.at
			for _, t := range terms {
				for _, edge := range []time.Duration{t.from, t.until} {
					if edge > at && edge < next {
						next = edge
					}
				}
			}
			cap, rate := smallest(at+1, next-1)
			if b.rules.Shards > 1 || b.leased || len(b.moves) > 0 {
				rate = 0 // a shard that is full refills no other, and a clock that was set back brings nothing for a while
			}
			level = min(level+rate*float64(next-at), float64(cap))
			at = next
		}
		// What costs more than was taken is charged later, and by then a smaller burst may be in force.
		soon, _ := smallest(x.at, x.at+max(back, b.life))
		cap, _ := smallest(x.at, x.at)
		last, level = max(last, x.at), min(min(level, float64(soon))-float64(x.n), float64(cap))
	}
	return int64(math.Floor(level - 1e-6 - math.Abs(level)*1e-12))
}

// precision is the length of a sliding window's blocks; see package tiered.
func precision(l tiered.Limit) time.Duration {
	switch {
	case l.Precision > 0:
		return l.Precision
	case l.Per >= time.Minute:
		return l.Per / 60
	}
	return max(l.Per/10, time.Microsecond)
}
