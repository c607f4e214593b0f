// Package places has what one process knows of the places of one key: which it has, which its
// requests use, and what it says of them to Redis.
//
// It does no I/O, takes no lock and reads no clock, so that every order of messages can be played
// on it. Package atonce has the lock and the clock.
package places

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

const (
	// Tick is how often a key with spare places or with waiters is looked at. A place that is given
	// back and not used again is offered to others after two of them.
	Tick = 20 * time.Millisecond

	// restate is how long a process goes on using its spare places without asking whether others
	// wait. With a Tick and a Poll it is 100 ms until a waiter of another process is served.
	restate = 40 * time.Millisecond

	// rare is the mean time between requests of a key from which on its places are not kept spare,
	// if other processes have some too.
	rare = 10 * time.Millisecond

	// Poll is the longest pause after which a process that waits asks again, at its next look.
	// Redis takes it for waiting for four times as long.
	Poll = 20 * time.Millisecond
)

// Key is one key in one process. The zero value has no places.
type Key struct {
	Places int64         // of the key, by the last request; ≥ 1
	Life   time.Duration // of the process' record in Redis

	running int64 // places of requests that run, also of those that the fail mode admitted

	// covered are the places that the process may use, until it has been silent for a life. Its
	// record in Redis has at least as many, and all processes together are covered for Places at
	// most. What runs beyond that came by the fail mode, or was lost: nobody gets it after that.
	covered int64
	until   time.Duration // from then on the record may have ended
	process string        // whose record it is
	since   int64         // server time in the last accepted reply

	recorded int64 // places that the process' record may have, unless it has ended
	before   int64 // recorded, before the claim under way
	share    int64 // what the process should have at most, because others wait
	granted  int64 // places of the last reply that no request has yet; they may be beyond share

	seq    int64         // of the claim under way; 0 is none
	hold   int64         // what it states
	stated int64         // the Places that it states
	sent   time.Duration // when it left, or the last one
	used   bool          // a spare place was used since

	asked time.Duration // when a request came last
	gap   time.Duration // between requests: a moving mean

	shared  bool  // others have some places, too
	tight   bool  // all places were taken, some by others
	low     int64 // the fewest spare places since the last look
	surplus int64 // spare places to give back with the next claim
}

// Running returns the places of requests that run.
func (k *Key) Running() int64 { return k.running }

// Granted returns the places of the last reply that no request has yet.
func (k *Key) Granted() int64 { return k.granted }

// Idle returns the places that Redis may keep for the process and no request has.
func (k *Key) Idle() int64 { return max(0, k.recorded-k.running) }

// UnderWay reports whether a claim is under way.
func (k *Key) UnderWay() bool { return k.seq > 0 }

// Spare returns the places that the next request may have without a claim.
func (k *Key) Spare(now time.Duration) int64 {
	if now >= k.until {
		return 0
	}
	most := min(k.covered, k.Places)
	if k.share < k.Places { // others wait
		most = min(most, max(k.share, k.running+k.granted))
	}
	return max(0, most-k.running)
}

// Asked says that a request comes.
func (k *Key) Asked(now time.Duration) {
	k.gap += (min(now-k.asked, 8*rare) - k.gap) / 4
	k.asked = now
}

// Take gives n places to a request, if so many are spare.
func (k *Key) Take(now time.Duration, n int64) bool {
	spare := k.Spare(now)
	if spare < n {
		return false
	}
	k.running += n
	k.granted = max(0, k.granted-n)
	k.low = min(k.low, spare-n)
	k.used = true
	return true
}

// Admit gives n places to a request by the fail mode. The next claim tells Redis.
func (k *Key) Admit(n int64) { k.running += n }

// Return takes the places of a request back.
func (k *Key) Return(n int64) { k.running -= n }

// Empty reports whether nothing is known of the key that its record in Redis needs: it can be
// forgotten.
func (k *Key) Empty() bool { return k.running == 0 && k.recorded == 0 && k.seq == 0 }

// Sent returns when the last claim left.
func (k *Key) Sent() time.Duration { return k.sent }

// Claim composes the claim that leaves at now: it states what runs and what is kept spare, and asks
// for what want needs beyond that. The first of them needs need. waits says that somebody goes on
// waiting if there is none. No claim may be under way.
func (k *Key) Claim(now time.Duration, process string, seq, want, need int64, waits bool) lua.Claim {
	if process != k.process { // this machine is a copy, or was one
		k.process, k.covered, k.until = process, 0, 0
	}
	k.granted = 0
	spare := k.Spare(now)
	spare -= min(spare, k.surplus)
	hold := k.running + spare
	// From the execution of the claim on Redis grants the rest to others.
	k.covered = min(k.covered, hold)
	k.seq, k.hold, k.stated, k.sent = seq, hold, k.Places, now
	k.surplus, k.low, k.used = 0, spare, false
	k.before = k.recorded
	c := lua.Claim{
		Places: k.Places, Seq: seq, Hold: hold, Life: k.Life.Microseconds(), Since: k.since,
		Want: min(max(0, want-spare), lua.MostPlaces),
	}
	if c.Want > 0 {
		c.Need = min(max(1, need-spare), c.Want)
	}
	if waits && c.Want > 0 {
		c.Wait = (4 * Poll).Microseconds()
	}
	k.recorded = max(k.recorded, hold+c.Want)
	return c
}

// Accept takes the reply to the claim seq. It reports false if another claim is under way, or none:
// then nothing changes. lost says that places of the process went to others, because Redis had not
// heard of it for a life.
func (k *Key) Accept(seq int64, r lua.ClaimReply) (lost, ok bool) {
	if seq != k.seq {
		return false, false
	}
	k.seq = 0
	if r.Code != lua.ClaimDone {
		k.covered, k.until, k.recorded = 0, 0, 0
		return false, true
	}
	// What runs counts even if it is more than there is. It must not be used again then.
	others := r.Held - k.hold - r.Grant
	k.recorded = k.hold + r.Grant
	k.shared = others > 0
	k.tight = k.shared && r.Held >= k.stated
	k.covered = min(k.recorded, max(0, k.stated-others))
	k.until = k.sent + k.Life/100*99 // clocks differ
	k.since, k.share, k.granted = r.Now, r.Share, r.Grant
	k.low = max(0, k.covered-k.running)
	return r.Flags&lua.PlacesLost != 0, true
}

// Fail says that no reply to the claim seq is accepted any more. It reports false if that claim is
// not under way. executed says that Redis may have executed it, or may do so later.
func (k *Key) Fail(seq int64, executed bool) bool {
	if seq != k.seq {
		return false
	}
	k.seq = 0
	if !executed {
		k.recorded = k.before
	}
	return true
}

// Look is called every Tick. It reports whether a claim is due: for spare places that were not used
// since the last look, because others wait, or to learn whether they do. rest reports that the key
// needs no further look.
func (k *Key) Look(now time.Duration) (due, rest bool) {
	spare, idle := k.Spare(now), k.Idle()
	if k.surplus = min(max(k.surplus, k.low), spare); k.tight { // who asks there is refused
		k.surplus = spare
	}
	k.low = spare
	due = k.surplus > 0 || idle > spare || k.used && now >= k.sent+restate
	return due && !k.UnderWay(), idle == 0 && !k.used && !k.UnderWay()
}

// Yields reports whether the process has more than it should, because others wait, and a place of
// it has become free: then a claim is due at once.
func (k *Key) Yields() bool {
	return k.share < k.Places && k.covered > max(k.running, k.share) && !k.UnderWay()
}

// Rare reports whether a claim should give spare places back soon: others use the key too, and this
// process would keep them for long until its next request.
func (k *Key) Rare(now time.Duration) bool {
	if !k.shared || k.gap < rare {
		return false
	}
	k.surplus = k.Spare(now)
	return k.surplus > 0
}

// Drain has the next claim give all spare places back.
func (k *Key) Drain() { k.surplus = k.covered }
