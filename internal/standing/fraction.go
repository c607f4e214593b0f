package standing

import (
	"math/bits"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// drift is by how much the rates of the clocks of process and Redis may differ, in units of
// lua.Pool: 1 %. Virtual time runs that much slower, and a right ends that much earlier.
const drift = (lua.Pool + 99) / 100

// mostChanges bounds how many changes of the fraction are kept apart. A change that is older than a
// limit's refill has no effect, and of the others the two oldest are folded into one that is
// stricter than both.
const mostChanges = 8

// mostVirtual is where virtual time ends, after seven years of a process that is alone. Then shares
// are refilled no more, and Redis decides. What a place says is later by the time of a debt at
// most, and fits into its word.
const mostVirtual = 1<<(64-tagBits+unitBits) - 2*longestFill

// stretch is a time in which this process has one fraction. Virtual time runs at its speed, and
// stops at its end: it measures the refill of the share of every key at once, as the virtual time
// of weighted fair queueing does (Parekh and Gallager 1993). A stretch never changes. Another
// fraction is another stretch.
type stretch struct {
	start, virtual time.Duration // the virtual time at the start
	end            time.Duration // of the right to the fraction
	fraction       int64         // of lua.Pool
	changes        []change      // that count, oldest first; from one to the next, least rises
	fractions      []change      // the same, without those that only emptied the shares of buckets
}

// change is a change of the fraction. Of each share no more was left than the smaller of the
// fractions holds, so a share that grows gets only what is refilled, and one that shrinks is
// clipped.
type change struct {
	at, virtual time.Duration // when it was
	least       int64         // the smaller of the fractions before and after it
}

// at returns the virtual time at now. It is rounded down.
func (s *stretch) at(now time.Duration) time.Duration {
	now = max(min(now, s.end), s.start)
	return min(s.virtual+scale(now-s.start, s.fraction*(lua.Pool-drift)/lua.Pool), mostVirtual)
}

// now returns the virtual time at now in whole units, in which places are kept.
func (s *stretch) now(now time.Duration) time.Duration { return s.at(now) &^ (unit - 1) }

// next returns the stretch that follows s from now on, with another fraction or another end.
func (s *stretch) next(now time.Duration, fraction int64, end time.Duration) *stretch {
	now = max(now, s.start) // whoever changes the fraction may have read the clock before the change before it
	n := &stretch{start: now, virtual: s.at(now), end: end, fraction: fraction, changes: s.changes, fractions: s.fractions}
	least := min(s.fraction, fraction)
	if now >= s.end { // in between, the fraction was 0
		least = 0
	} else if s.fraction == fraction {
		return n
	}
	n.virtual &^= unit - 1 // then a share that was full loses no token by rounding
	c := change{now, n.virtual, least}
	n.changes, n.fractions = with(s.changes, c), with(s.fractions, c)
	return n
}

// emptied returns the stretch that follows s from now on, with the shares of buckets empty. Those
// of windows stay: a window keeps the split that it began with.
func (s *stretch) emptied(now time.Duration) *stretch {
	n := s.next(now, s.fraction, s.end)
	n.virtual &^= unit - 1
	n.changes = with(n.changes, change{n.start, n.virtual, 0})
	return n
}

// with returns changes with one more. Where it leaves no more than an earlier one, the earlier one
// has no effect.
func with(changes []change, c change) []change {
	kept := len(changes)
	for kept > 0 && changes[kept-1].least >= c.least {
		kept--
	}
	all := append(append([]change(nil), changes[:kept]...), c)
	if len(all) > mostChanges {
		all[1].least = all[0].least
		all = all[1:]
	}
	return all
}

// empty returns the virtual time at which a full share of l would have been empty, at the virtual
// time v, rounded up to units: a key whose place says an earlier time has a full share.
func (s *stretch) empty(v time.Duration, l *Limit) time.Duration {
	e := max(l.since, v-scale(l.fill, s.fraction))
	for i := range s.changes {
		c := &s.changes[i]
		e = max(e, c.virtual-scale(l.fill, c.least))
	}
	return inUnits(e)
}

// since returns the least fraction that this process has had since a time.
func (s *stretch) since(t time.Duration) int64 {
	for i := range s.fractions { // from one to the next, least rises
		if c := &s.fractions[i]; c.at >= t {
			return min(c.least, s.fraction)
		}
	}
	return s.fraction
}

// scale returns the part of d that a fraction of lua.Pool has, rounded down.
func scale(d time.Duration, fraction int64) time.Duration {
	hi, lo := bits.Mul64(uint64(d), uint64(fraction))
	return time.Duration(hi<<(64-poolBits) | lo>>poolBits)
}

// poolBits is the logarithm of lua.Pool.
const poolBits = 20
