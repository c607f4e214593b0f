package remote

import (
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
	leases map[string]memoryLease
}

// brokenFixedArgument reports the first argument that breaks a rule of the fixed window's.
func brokenFixedArgument(c *Call) int {
	switch {
	case c.To > 0:
		return 19
	case c.Phase >= c.Period:
		return firstLimit + 2
	case len(c.Also) > 0:
		return firstLimit + limitFields
	}
	return 0
}

// windowOf is the number of the window that has an instant.
func windowOf(instant, phase, period int64) int64 {
	return int64(math.Floor(float64(instant-phase) / float64(period)))
}

// run implements memoryState.
func (w *memoryWindow) run(c *Call, server int64, exists bool, r *Reply) (keep int64, written bool) {
	next := *w // its leases are replaced, never changed
	var flags Flags
	if !exists {
		next = memoryWindow{born: server, last: server}
		flags = Created
	}
	if c.Epoch > 0 && c.Epoch != next.born {
		flags += OtherEpoch
	}
	want, least, leased := min(c.Want, c.Cap), max(c.Min, 1), c.Lease != ""

	now, stepped := server, false
	if now < next.last {
		if stepped = next.last-now > MaxBack.Microseconds(); stepped {
			flags += SteppedBack
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
	answer := func(code Code, grant, retry, left int64) {
		*r = Reply{
			Code: code, Grant: grant, Level: c.Cap - next.count, Retry: retry, Active: next.active, TTLLeft: left, Now: server,
			Epoch: next.born, Flags: flags, Which: 1, Stamp: now,
		}
		if next.count > 0 {
			r.Reset = max(0, edge-server)
		}
	}
	if owned && c.Seq <= own.seq {
		left := min(own.end, edge, now+c.TTL) - now
		if c.Seq < own.seq || left <= 0 {
			answer(Stale, 0, 0, 0)
			return 0, false
		}
		after := int64(0)
		if own.grant == 0 && want > 0 {
			after = edge - server
		}
		once := c.safeBy(own.end)
		if c.Reset > 0 && !once || c.Refund > 0 && !(once && c.Epoch == next.born && window(c.At) <= window(own.end-1)) {
			flags += Unapplied
		}
		answer(Replay, own.grant, after, left)
		return 0, false
	}

	next.leases = maps.Clone(next.leases)
	if sweep {
		next.sweepEnded(now, c.TTL)
		own = next.leases[c.Lease]
	}
	var out, charged int64
	if owned {
		next.wants -= own.want
		if own.out+own.want > 0 {
			next.active--
		}
		if out = own.out; c.Ack < own.seq {
			next.count -= own.grant
			out -= own.grant
			charged = own.debt
		}
		ret := min(c.Ret, out)
		next.count -= ret
		out -= ret
	}
	if c.Hold > out {
		next.count += c.Hold - out
		flags += Adopted
	}
	if !owned && c.Ack > 0 || owned && c.Ack > own.seq {
		flags += Unrecorded
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
		flags += Unapplied
	}
	asked := min(c.Reset, now)
	if now > server { // the clock was set back: the window waits
		asked = now
	}
	if c.Reset > 0 && once && window(asked) == k {
		held := c.Hold
		for id, l := range next.leases {
			if id != c.Lease {
				held += l.out
			}
		}
		next.count = min(next.count, held)
	}
	next.count = max(next.count, c.Hold)

	code, grant, after := Granted, int64(0), int64(0)
	avail, wanted := c.Cap-next.count, next.wants+want
	if want > 0 && avail >= least {
		grant = part(avail, want, wanted, least)
		next.count += grant
	} else if want > 0 {
		code, after = Denied, max(1, edge-server)
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
				next.leases = make(map[string]memoryLease)
			}
			next.leases[c.Lease] = memoryLease{c.Seq, grant, c.Hold + grant, want, now + left, charged}
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
		case l.end > now:
			w.wants, w.sweep = w.wants+l.want, now+(ttl+1)/2
		case l.want > 0:
			if l.want = 0; l.out == 0 {
				w.active--
			}
			w.leases[id] = l
		}
	}
}

// part is what a caller gets of avail tokens, avail ≥ least: all that it wants, or one and a half times its part of what the leases want.
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
