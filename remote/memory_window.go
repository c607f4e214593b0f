package remote

import (
	"github.com/tiered-limiter/tiered-limiter/lua"
	"maps"
	"math"
)

// memoryWindow is lua/fixed_window.lua in Go.
type memoryWindow struct {
	born  int64 // epoch
	last  int64 // newest time
	count int64 // tokens of the window of last

	lends  bool
	wants  int64 // sum of the leases' wants
	active int64 // leases that hold or want tokens
	latest int64 // end of the latest lease
	sweep  int64 // next sweep, 0 none
	leases map[string]lua.Record
}

// windowOf is the number of the window that has an instant.
func windowOf(instant, phase, period int64) int64 {
	return int64(math.Floor(float64(instant-phase) / float64(period)))
}

// run implements memoryState.
func (w *memoryWindow) run(c *lua.Call, server int64, exists bool, r *lua.Reply) (keep int64, written bool) {
	next := *w // its leases are replaced, never changed
	var flags lua.Flags
	if !exists {
		next = memoryWindow{born: server, last: server}
		flags = lua.Created
	}
	if c.Epoch > 0 && c.Epoch != next.born {
		flags += lua.OtherEpoch
	}
	want, least, leased := min(c.Want, c.Cap), max(c.Min, 1), c.Lease != ""

	now, stepped := server, false
	if now < next.last {
		if stepped = next.last-now > lua.MaxBack.Microseconds(); stepped {
			flags += lua.SteppedBack
			next.latest = max(now, now+next.latest-next.last)
			if next.sweep > 0 {
				next.sweep = max(now, now+next.sweep-next.last)
			}
		} else {
			now = next.last
		}
	}
	window := func(instant int64) int64 { return windowOf(instant, c.Phase, c.Period) }
	k := window(now)
	edge := c.Phase + (k+1)*c.Period
	if exists && k > window(next.last) && next.latest <= now {
		next = memoryWindow{born: next.born, last: next.last}
	}

	sweep := next.sweep > 0 && now >= next.sweep
	own, owned := next.leases[c.Lease]
	owned = owned && leased
	answer := func(code lua.Code, grant, retry, left int64) {
		*r = lua.Reply{
			Code: code, Grant: grant, Level: c.Cap - next.count, Retry: retry, Active: next.active, TTLLeft: left, Now: server,
			Epoch: next.born, Flags: flags, Which: 1, Stamp: now,
		}
		if next.count > 0 {
			r.Reset = max(0, edge-server)
		}
	}
	if owned && c.Seq <= own.Seq {
		left := min(own.End, edge, now+c.TTL) - now
		if c.Seq < own.Seq || left <= 0 {
			answer(lua.Stale, 0, 0, 0)
			return 0, false
		}
		after := int64(0)
		if own.Grant == 0 && want > 0 {
			after = edge - server
		}
		once := c.SafeBy(own.End)
		if c.Reset > 0 && !once || c.Refund > 0 && !(once && c.Epoch == next.born && window(c.At) <= window(own.End-1)) {
			flags += lua.Unapplied
		}
		answer(lua.Replay, own.Grant, after, left)
		return 0, false
	}

	next.leases = maps.Clone(next.leases)
	if sweep {
		next.sweepEnded(now, c.TTL)
		own = next.leases[c.Lease]
	}
	var out, charged int64
	if owned {
		next.wants -= own.Want
		if own.Out+own.Want > 0 {
			next.active--
		}
		if out = own.Out; c.Ack < own.Seq {
			next.count -= own.Grant
			out -= own.Grant
			charged = own.Debt
		}
		ret := min(c.Ret, out)
		next.count -= ret
		out -= ret
	}
	if c.Hold > out {
		next.count += c.Hold - out
		flags += lua.Adopted
	}
	if !owned && c.Ack > 0 || owned && c.Ack > own.Seq {
		flags += lua.Unrecorded
	}

	if c.Debt > 0 && window(c.Since) == k {
		charge := min(max(0, c.Debt-charged), max(0, c.Cap-next.count))
		next.count += charge
		charged += charge
	}
	once := c.Deadline > 0 && c.Deadline <= server+c.TTL
	if c.Refund > 0 && once && exists && c.Epoch == next.born && window(c.At) == k {
		next.count -= c.Refund
	}
	mine := once && exists && c.Epoch == next.born && window(c.At) <= k
	if c.Reset > 0 && !once || c.Refund > 0 && !mine {
		flags += lua.Unapplied
	}
	asked := min(c.Reset, now)
	if now > server { // the clock was set back: the window waits
		asked = now
	}
	if c.Reset > 0 && once && window(asked) == k {
		held := c.Hold
		for id, l := range next.leases {
			if id != c.Lease {
				held += l.Out
			}
		}
		next.count = min(next.count, held)
	}
	next.count = max(next.count, c.Hold)

	code, grant, after := lua.Granted, int64(0), int64(0)
	avail, wanted := c.Cap-next.count, next.wants+want
	if want > 0 && avail >= least {
		grant = part(avail, want, wanted, least)
		next.count += grant
	} else if want > 0 {
		code, after = lua.Denied, max(1, edge-server)
	}

	left := int64(0)
	peek := !leased && c.Want == 0
	if written = leased || !peek && (grant > 0 || sweep || stepped); written {
		if leased {
			left = min(c.TTL, edge-now)
			next.latest, next.wants, next.lends = max(next.latest, now+left), wanted, true
			if c.Hold+grant+want > 0 {
				next.active++
			}
			if next.sweep == 0 {
				next.sweep = now + left
			}
			if next.leases == nil {
				next.leases = make(map[string]lua.Record)
			}
			next.leases[c.Lease] = lua.Record{Seq: c.Seq, Grant: grant, Out: c.Hold + grant, Want: want, End: now + left, Debt: charged}
		}
		next.last = now
		keep = min(int64(math.Ceil(float64(max(edge, next.latest)-server)/1000))+1000, longestKeep)
	}
	answer(code, grant, after, left)
	if written {
		*w = next
	} else if !exists {
		r.Epoch = 0
	}
	return keep, written
}

// sweepEnded lets what leases wanted that have ended be wanted no more.
func (w *memoryWindow) sweepEnded(now, ttl int64) {
	w.wants, w.sweep = 0, 0
	for id, l := range w.leases {
		switch {
		case l.End > now:
			w.wants, w.sweep = w.wants+l.Want, now+(ttl+1)/2
		case l.Want > 0:
			if l.Want = 0; l.Out == 0 {
				w.active--
			}
			w.leases[id] = l
		}
	}
}

// part is what a caller gets of avail tokens, avail ≥ least: all that it wants, or one and a half times its part of what the
// leases want.
func part(avail, want, wanted, least int64) int64 {
	return min(max(int64(math.Floor(1.5*float64(avail)*float64(want)/float64(wanted))), least), want, avail)
}

// fields implements memoryState.
func (w *memoryWindow) fields() map[string]string {
	f := map[string]string{"v": "fw1", "c": decimal(w.born), "t": decimal(w.last), "n": decimal(w.count)}
	if w.lends {
		f["w"], f["a"], f["e"], f["g"] = decimal(w.wants), decimal(w.active), decimal(w.latest), decimal(w.sweep)
	}
	for id, l := range w.leases {
		f["p"+id] = l.String()
	}
	return f
}

// clone implements memoryState.
func (w *memoryWindow) clone() memoryState {
	twin := *w
	twin.leases = maps.Clone(w.leases)
	return &twin
}
