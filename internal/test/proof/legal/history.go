package legal

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// longestTimeout is what Options.Timeout grows to at most, when Redis answers late.
const longestTimeout = time.Second

// history is what happened to one key of one policy. player.mu guards it.
type history struct {
	policy, key int
	base        time.Time
	calm        bool
	rules       tiered.Policy
	life        time.Duration     // the longest life of a lease
	terms       []term            // of the limit that changes
	open        map[int]int       // by slot: the index of its current term
	phase       time.Duration     // where a fixed window begins, by the store's clock
	moves       []move            // of the store's clock
	charged     time.Duration     // when a request last turned out to cost more
	used        []ideal.Admission // what requests turned out to cost more
	later       int64             // the largest of these costs
	meters      int               // steps that charged such costs
	dearest     int64             // the largest cost that was asked for at once
	setBack     time.Duration     // by how much the clock was set back since the store last executed a call
	written     time.Duration     // when the store last wrote the bucket for sure
	leased      bool              // tokens were leased; while they are out, the bucket does not refill into their room
	lent        time.Duration     // until then leases hold tokens, at most

	fillers map[*process]bool // processes that gave tokens back, or filled the bucket

	sure    []ideal.Admission // admitted by Redis' tokens
	credits []ideal.Credit    // tokens that came back, or are conceded
	spent   []spending        // all tokens that may have been taken
	unasked []spending        // those that Redis may hear of afterwards
	calls   []asked           // that the store executed
}

// term is a limit with the time for which it was in force: from the moment when a process had it,
// until that process' first call with the next one. A token bucket goes on by it until the first
// call that comes lua.TermsHold after its last use.
type term struct {
	tiered.Limit
	from, closed, until time.Duration
	used                time.Duration // a use, or the end of a lease, was last then
	slot                int
}

// spending is tokens that may have been taken. Negative ones came back.
type spending struct {
	at, of time.Duration // of is when tokens that come back were taken
	n      int64
}

// move is a step of the store's clock.
type move struct{ at, by time.Duration }

const (
	never = time.Duration(math.MaxInt64)

	// back is the longest time until returned tokens arrive: a call is wanted within a lease's
	// life, and is sent within 50 ms.
	back = 3 * second
)

func newHistory(base time.Time, policy, key int, p tiered.Policy, timeout time.Duration, calm bool) *history {
	if !calm {
		timeout = max(timeout, longestTimeout)
	}
	b := &history{
		base: base, policy: policy, key: key, rules: p, calm: calm, life: max(second, 2*timeout), open: make(map[int]int),
		fillers: make(map[*process]bool),
	}
	b.leases(p.Lease)
	return b
}

// leases records that a process leases so from now on.
func (b *history) leases(l tiered.Lease) {
	period := cmp.Or(l.Period, defaults.Period)
	if !b.calm { // if calls take long, leases last longer
		period *= 4
	}
	b.life = max(b.life, 4*period)
}

// inForce records the limit of a process from now on. Unlimited and Blocked put no limit in force
// and end none: what was taken before is returned by the former limit.
func (b *history) inForce(slot int, now time.Duration, l tiered.Limit) {
	if free(l) {
		return
	}
	if i, ok := b.open[slot]; ok {
		if b.terms[i].Limit == l {
			return
		}
		b.terms[i].closed = now
	}
	b.open[slot] = len(b.terms)
	b.terms = append(b.terms, term{l, now, never, never, now, slot})
}

// end ends the terms that were closed for so long, and did not end yet.
func (b *history) end(at, hold time.Duration) {
	for i := range b.terms {
		if t := &b.terms[i]; at >= after(t.closed, hold) && t.until == never {
			t.until = at
		}
	}
}

// executed records that the store executed a process' call.
func (b *history) executed(slot int, sent, now time.Duration, c *lua.Call, grant int64) {
	lost := b.lost(now)
	b.lent += lost
	if c.Lease != "" || grant > 0 {
		b.written = now
	}
	if b.leased = b.leased || c.Lease != "" && grant > 0; c.Lease != "" && grant+c.Hold > 0 {
		b.lent = max(b.lent, now+time.Duration(c.TTL)*time.Microsecond)
	}
	if b.rules.Algorithm == tiered.FixedWindow {
		b.phase = time.Duration(c.Phase) * time.Microsecond
	}
	if b.rules.Algorithm == tiered.TokenBucket {
		b.outlasted(now, lost, c)
		return
	}
	for i := range b.terms {
		if t := &b.terms[i]; t.slot == slot && t.closed < sent && t.until == never && !b.by(t, c) {
			t.until = now
		}
	}
}

// lost returns for how much longer, by the bucket's time, things last because the clock was set
// back before this call: the bucket goes on where it was last written, and waits until the clock is
// there, up to MaxBack.
func (b *history) lost(now time.Duration) time.Duration {
	by := b.setBack
	b.setBack = 0
	return min(by, now-b.written+lua.MaxBack)
}

// outlasted ends the terms that nobody has used for a hold when a call of a token bucket is
// executed.
func (b *history) outlasted(now, lost time.Duration, c *lua.Call) {
	for i := range b.terms {
		t := &b.terms[i]
		t.used += lost
		switch {
		case b.uses(t, c):
			t.used = max(t.used, now)
			if c.Lease != "" {
				t.used = max(t.used, now+time.Duration(c.TTL)*time.Microsecond)
			}
		case t.closed < now && t.until == never && now >= after(t.used, lua.TermsHold):
			t.until = now
		}
	}
}

// by reports whether a call may use a term's limit: an unused key gives tokens back by the limit
// that it had.
func (b *history) by(t *term, c *lua.Call) bool {
	limits := c.Limits()
	for i, l := range t.Each() {
		one := *c
		one.Cap, one.Tokens, one.Period, one.Span = limits[i].Cap, limits[i].Tokens, limits[i].Period, limits[i].Span
		if !b.byOne(l, &one) {
			return false
		}
	}
	return true
}

// byOne is by of one of several limits.
func (b *history) byOne(t tiered.Limit, c *lua.Call) bool {
	whole := burst(t)
	for k := int64(1); b.rules.Standing > 0 && k <= lua.MostShared; k++ { // the part in Redis
		if c.Cap != whole-whole*k/8 {
			continue
		}
		if c.Algorithm == lua.FixedWindow {
			return countsBy(t, c)
		}
		if c.Algorithm == lua.TokenBuckets {
			if c.Tokens == t.Tokens-t.Tokens*k/8 && c.Period == t.Per.Microseconds() {
				return true
			}
			continue
		}
		part := float64(c.Tokens) / float64(c.Period) * float64(t.Per.Microseconds()) / float64(t.Tokens)
		if math.Abs(part-1+float64(k)/8) < 1e-3 {
			return true
		}
	}
	if c.Cap != whole {
		return false
	}
	switch b.rules.Algorithm {
	case tiered.SlidingWindow:
		return c.Period == precision(t).Microseconds()
	case tiered.TokenBucket:
		return c.Tokens == t.Tokens && c.Period == t.Per.Microseconds()
	}
	return countsBy(t, c)
}

func (b *history) admitted(before, after time.Duration, n int64, sure bool) {
	if sure {
		b.sure = append(b.sure, ideal.Admission{Before: int64(before), After: int64(after), Tokens: n})
	}
	b.spent = append(b.spent, spending{after, after, n})
}

// settled records that a request cost another number of tokens in the end.
func (b *history) settled(now, of time.Duration, cost, actual int64) {
	if actual < cost {
		b.credit(now, now+max(back, b.life), cost-actual)
		b.spent = append(b.spent, spending{now, of, actual - cost})
	} else {
		b.spent = append(b.spent, spending{now, now, actual - cost})
		b.alone(now, actual-cost)
	}
}

// vain records tokens that a request may have been granted and did not use, because another key
// refused or the request had left. They come back.
func (b *history) vain(p *process, before, after time.Duration, n int64) {
	b.fills(p)
	b.credit(before, after+max(back, b.life), n)
}

func (b *history) credit(from, to time.Duration, n int64) {
	b.credits = append(b.credits, ideal.Credit{From: int64(from), To: int64(to), Tokens: n})
}

// reset records that an operator filled the bucket, or may have.
func (b *history) reset(before, after time.Duration) {
	b.credit(before, after+max(back, b.life), b.most())
}

// accident records one that costs n tokens, but at most a burst.
func (b *history) accident(now time.Duration, n int64) { b.credit(now, now+b.life, min(n, b.most())) }

// moved records a step of the store's clock. A step ahead costs the refill of that time.
func (b *history) moved(now, by time.Duration) {
	b.moves = append(b.moves, move{now, by})
	b.setBack += max(-by, 0)
	if by > 0 {
		b.accident(now, math.MaxInt64)
	}
}

// most returns the largest burst of all limits that were in force.
func (b *history) most() (most int64) {
	for _, t := range b.terms {
		for _, l := range t.Each() {
			most = max(most, burst(l))
		}
	}
	return most
}

// limits returns the limits of the key, each as a list of terms.
func (b *history) limits() (all [][]term) {
	for i := range b.rules.Limit.Each() {
		terms := slices.Clone(b.terms)
		for j := range terms {
			terms[j].Limit = terms[j].Each()[i]
		}
		all = append(all, terms)
	}
	return all
}

// fills records that a process gives tokens back, or may.
func (b *history) fills(p *process) { b.fillers[p] = true }

// filled reports whether a process may see a bucket that is fuller than it can know, because
// another process gave tokens back or had another limit.
func (b *history) filled(p *process) bool {
	for other := range b.fillers {
		if other != p {
			return true
		}
	}
	return len(b.open) > 1 && slices.ContainsFunc(b.terms, func(t term) bool { return t.Limit != b.terms[0].Limit })
}

// left returns a lower bound of the tokens that must be there in the end. Returned tokens count at
// once, because then most of them are lost if the bucket is full. The slowest rate and the smallest
// burst count that were in force.
func (b *history) left(now time.Duration, burnt int64) int64 {
	least := int64(math.MaxInt64)
	lowered := slices.ContainsFunc(b.terms, func(t term) bool { return burst(t.Limit) < b.most() })
	if lowered && b.leased && slices.ContainsFunc(b.moves, func(m move) bool { return m.by < 0 }) {
		return 0 // by a clock that was set back leases end later, and until then a smaller burst has no room for their tokens
	}
	slices.SortStableFunc(b.spent, func(x, y spending) int { return int(x.at - y.at) })
	for _, terms := range b.limits() {
		least = min(least, b.leftOf(terms, now)-burnt)
	}
	return least
}

func (b *history) leftOf(terms []term, now time.Duration) int64 {
	smallest := func(from, to time.Duration) (cap int64, rate float64) {
		cap, rate = math.MaxInt64, math.Inf(1)
		for _, t := range terms {
			if t.from <= to && t.until >= from {
				cap, rate = min(cap, burst(t.Limit)), min(rate, float64(t.Tokens)/float64(perOf(t.Limit)))
			}
		}
		if b.rules.Standing > 0 { // a new process sees Redis' part
			cap, rate = cap-int64(float64(cap)*b.rules.Standing), rate*(1-b.rules.Standing)
		}
		return cap, rate
	}
	if b.rules.Algorithm != tiered.TokenBucket {
		// What was leased counts from its settlement on. A window that the store does not know
		// begins with the blocks of another one, each at its end.
		longest := after(perOf(terms[0].Limit)+2*precision(terms[0].Limit), b.life)
		for _, t := range b.terms[1:] {
			for _, l := range t.Each() {
				longest = after(longest, precision(l))
			}
		}
		if len(b.moves) > 0 {
			longest = now // it is unknown when a clock was set back: everything may still count
		}
		left, _ := smallest(now-min(longest, now), now)
		if b.rules.Algorithm == tiered.FixedWindow && slices.ContainsFunc(b.moves, func(m move) bool { return m.by < 0 }) {
			return 0 // a window whose clock was set back takes no tokens back until it is as late as it was
		}
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
		// In steps, because a limit may be in force for a part of the time only.
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
			if b.leased || len(b.moves) > 0 {
				rate = 0 // a clock that was set back brings nothing for a while
			}
			level = min(level+rate*float64(next-at), float64(cap))
			at = next
		}
		// A cost above what was taken is charged later, when a smaller burst may be in force.
		soon, _ := smallest(x.at, x.at+max(back, b.life))
		cap, _ := smallest(x.at, x.at)
		last, level = max(last, x.at), min(min(level, float64(soon))-float64(x.n), float64(cap))
	}
	return int64(math.Floor(level - 1e-6 - math.Abs(level)*1e-12))
}

// precision returns the length of a sliding window's blocks.
func precision(l tiered.Limit) time.Duration {
	if l.Precision > 0 {
		return l.Precision
	}
	return lua.DefaultBlock(l.Per)
}

func after(t, d time.Duration) time.Duration {
	if t > never-d {
		return never
	}
	return t + d
}
