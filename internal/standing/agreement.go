package standing

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

const (
	// life is how long a process may go on to use its shares after it was last seen to. One that
	// cannot reach Redis uses them until the end of its right.
	life = TTL + 12*time.Second

	// kept is how long it counts that some process used its shares.
	kept = life + lua.TermsHold

	// forgotten is how long Redis may go by the larger part of a process that took more of a limit
	// until a moment ago, beside the life of its leases.
	forgotten = lua.TermsHold

	// lastCall is how long a call of a process that has left may be under way. It gave its leases
	// back.
	lastCall = 2 * time.Second
)

// Agreement is how the processes come to split a policy's limits alike, as one of them goes by it.
// Each says with its report how many eighths it wants to be shared, and by how many it uses its
// shares. The limits hold if no process uses shares by more than what each leaves in Redis.
//
//   - A process takes from Redis what is left of the most that it wants, or that anybody was lately
//     seen to use. So one that wants less, or nothing, waits until the others have stopped.
//   - It uses its shares only while every process wants as much, after it has said that it will,
//     and once Redis has forgotten those who took more until then. It stops at once.
//
// So turning shares on, turning them off, and another part are the same event. While processes
// differ, nobody has the difference. A window counts what was used in it until it ends, so each is
// split by what held when it began: see [Parts]. The zero value wants nothing. There is no clock,
// no I/O and no lock.
type Agreement struct {
	wants, redis  int           // eighths
	used          int           // the most that anybody was lately seen to use
	usedUntil     time.Duration // until then it counts
	outsiders     int64         // processes that want another part, as last heard
	governedUntil time.Duration // until then the larger part of another process may govern in Redis
	ready, agreed bool          // it says that it uses its shares, and it may
	said          bool          // as last heard, all nodes know that
	agreedAt      time.Duration // since then they may be used
	windows       windows       // of a policy that counts by them
}

// Heard is what the last reports to all nodes said.
type Heard struct {
	Outsiders int64 // processes that want another part: the most of all nodes
	Used      int   // the most eighths by which any process uses shares
	Wanted    int   // what this one said that it wants: the most of all nodes
	Said      int   // by how many it said that it uses its own: the least of all nodes
	Nodes     int   // that have processes
	Told      int   // of these, how many have answered a report

	WasUsed []lua.Used // parts that were in use in windows that may not have ended: of all nodes
	At      int64      // the earliest of the nodes' clocks when they answered, in µs

	HeardAt time.Duration // when that node's answer came, by the process' clock
}

// Want sets how many eighths this process wants. leases is how long one may live that it has, and
// window is the longest of the policy's windows, 0 if it has none.
func (a *Agreement) Want(now time.Duration, eighths int, leases, window time.Duration) {
	a.windows.longest = window
	if eighths != a.wants {
		a.wants, a.ready, a.agreed, a.said = eighths, false, false, false
		a.governedUntil = max(a.governedUntil, now+forgotten+leases)
	}
	a.split(max(eighths, a.redis)) // it takes more once the others were told
}

// Hear learns what the last reports said. leases is how long one may live.
func (a *Agreement) Hear(now time.Duration, h Heard, leases time.Duration) {
	if h.Used >= a.used || now >= a.usedUntil {
		a.used, a.usedUntil = h.Used, now+kept
	}
	if a.wants == 0 {
		h.Outsiders = 0
	}
	switch {
	case h.Outsiders > 0 || a.outsiders > 0: // one that was counted may have taken more until now, and has leases
		a.governedUntil = max(a.governedUntil, now+forgotten+leases)
	case !a.said: // one may have come and left, before nodes knew that this process uses its shares
		a.governedUntil = max(a.governedUntil, now+forgotten+lastCall)
	}
	a.outsiders, a.said = h.Outsiders, h.Said == a.wants
	a.windows.hear(h)
	a.split(max(a.wants, h.Wanted, a.used))
	// A node that is new, as after a failover, changes nothing until it is heard.
	heard := h.Told > 0 && (a.agreed || h.Told == h.Nodes)
	a.ready = a.wants > 0 && a.redis == a.wants && a.outsiders == 0 && heard
	was := a.agreed
	if a.agreed = a.ready && (a.agreed || a.said && now >= a.governedUntil); a.agreed && !was {
		a.agreedAt = now
	}
}

// Stop ends the use of the shares, because this process does not report any more.
func (a *Agreement) Stop() { a.ready, a.agreed = false, false }

// split sets the part that this process leaves in Redis.
func (a *Agreement) split(eighths int) {
	if eighths > a.redis {
		a.ready, a.agreed = false, false
	}
	a.redis = eighths
}

// Redis returns how many eighths of the limits this process leaves to shares when it takes from
// Redis.
func (a *Agreement) Redis() int { return a.redis }

// Parts returns how windows are split, as this process knows.
func (a *Agreement) Parts() Parts { return Parts{a.windows, a.redis, a.agreedAt} }

// Uses returns by how many eighths this process is to say that it uses its shares.
func (a *Agreement) Uses() int {
	if a.ready {
		return a.wants
	}
	return 0
}

// Agreed reports whether this process may use its shares.
func (a *Agreement) Agreed() bool { return a.agreed }

// Outsiders returns how many processes want another part, as last heard.
func (a *Agreement) Outsiders() int64 { return a.outsiders }
