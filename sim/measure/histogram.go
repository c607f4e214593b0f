package measure

import (
	"math"
	"math/bits"
	"time"
)

// subBits says how finely a histogram divides each doubling of a time: into 2⁷ = 128 slots. The middle of a slot is at
// most 0.4 % off.
const subBits = 7

// longest is the greatest time that a histogram tells apart: 2⁴⁰ ns or 18 minutes. Its memory is 35 kB.
const longest = 1<<40 - 1

// histogram counts times. The zero value is empty.
type histogram struct {
	n      int64
	max    time.Duration // exact
	counts [(41 - subBits) << subBits]int64
}

// slot returns where a time counts: exactly below 2⁷ ns, from there on in 128 slots per doubling.
func slot(d time.Duration) int {
	v := uint64(min(max(d, 0), longest))
	doublings := max(bits.Len64(v)-subBits-1, 0)
	return doublings<<subBits + int(v>>doublings)
}

// middle returns the time that a slot stands for.
func middle(i int) time.Duration {
	doublings := max(i>>subBits-1, 0)
	low := uint64(i-doublings<<subBits) << doublings
	return time.Duration(low + (1<<doublings-1)/2)
}

func (h *histogram) add(d time.Duration) {
	h.n++
	h.max = max(h.max, d)
	h.counts[slot(d)]++
}

// merge adds all that o has counted.
func (h *histogram) merge(o *histogram) {
	if o.n == 0 {
		return
	}
	h.n += o.n
	h.max = max(h.max, o.max)
	for i, n := range o.counts {
		h.counts[i] += n
	}
}

// quantile returns the least time that at least a part q of all do not exceed, −1 ns if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.n)))
	var seen int64
	for i, n := range h.counts {
		if seen += n; n > 0 && seen >= rank {
			return min(middle(i), h.max)
		}
	}
	return -1
}
