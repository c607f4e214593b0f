package legal

import (
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// lent is what leases hold of one key, as the replies tell, in µs of the store's clock.
type lent struct {
	epoch int64
	ends  map[string]int64 // of the leases that hold something
}

// told judges what a caller is told whom a window refuses: no later time than the end of the first lease in which another
// process holds tokens, because by then they may be given back. It does not know of clocks that were set.
func (w *player) told(c *lua.Call, r *lua.Reply) {
	if c.Algorithm != lua.FixedWindow && c.Algorithm != lua.SlidingWindow || r.Code > lua.Replay || w.moved || w.plan.Real {
		return
	}
	b := w.lent[c.Bucket]
	if b == nil || b.epoch != r.Epoch {
		b = &lent{r.Epoch, make(map[string]int64)}
		w.lent[c.Bucket] = b
	}
	if r.Code == lua.Denied {
		for id, end := range b.ends {
			if id != c.Lease && end > r.Now && r.Now+r.Retry > end {
				w.faults = append(w.faults, Fault{"told", fmt.Sprintf(
					"at %v %q is told to come back in %d µs, and the lease of %q ends in %d: %+v", w.now(), c.Lease, r.Retry, id, end-r.Now, c)})
				break
			}
		}
	}
	if c.Lease == "" || r.Code == lua.Replay {
		return
	}
	out := c.Hold
	if c.To == 0 {
		out += r.Grant
	}
	if delete(b.ends, c.Lease); out > 0 {
		b.ends[c.Lease] = r.Now + r.TTLLeft
	}
}
