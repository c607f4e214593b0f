package local_test

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// FuzzShareClock drives a bucket that is alone, and the leases it had before, by any clock: one
// that jumps, stands still, goes back and starts below zero. Only where it goes beyond all that it
// showed before, time has passed, and only that refills the share:
//
//	admitted alone ≤ burst of the share + rate · (advance of the latest now)
//
// in any interval; exactly, but for the rounding of doubles and the nanosecond to which x/time/rate
// rounds a wait down. Of a lease no more is taken than was granted, and nothing at or after its
// deadline.
//
// limit is the policy's, as little-endian varints: cap, tokens, per. steps is what happens; see
// shareRun.step.
func FuzzShareClock(f *testing.F) {
	limit := func(capacity, tokens int64, per time.Duration) []byte {
		b := binary.AppendUvarint(nil, uint64(capacity-1))
		b = binary.AppendUvarint(b, uint64(tokens-1))
		return binary.AppendUvarint(b, uint64(per-time.Microsecond))
	}
	ordinary := limit(100, 100, time.Second)

	f.Add(ordinary, shareSteps(
		fleetOf, 4, alone, 25, alone, 1, move, 40*ms, alone, 1, alone, 1, move, time.Hour, alone, 25, alone, 1,
	))
	// Back and forth: a limiter that is told every now mints at each return.
	f.Add(ordinary, shareSteps(
		move, time.Hour, alone, 100, move, -10*time.Second, alone, 1, move, 10*time.Second, alone, 100,
		move, -time.Hour, alone, 1, move, time.Hour, alone, 100, alone, 1,
	))
	f.Add(ordinary, shareSteps(
		move, -time.Hour, alone, 100, move, time.Minute, alone, 1, move, -time.Minute, alone, 1, move, time.Hour,
		alone, 1,
	))
	// The fleet shrinks and grows while the clock is behind: neither gives tokens.
	f.Add(ordinary, shareSteps(
		fleetOf, 10, move, time.Second, alone, 10, move, -time.Second, fleetOf, 1, alone, 90, fleetOf, 5, move,
		time.Second, alone, 20,
		move, 500*ms, alone, 10, fleetOf, 2, alone, 50, move, 24*time.Hour, alone, 50, alone, 1,
	))
	// A lease that is spent before, beside and after, and one whose deadline comes near again.
	f.Add(ordinary, shareSteps(
		move, time.Second, lease, 20, take, 5, alone, 1, move, 2*time.Second, take, 1, move, -1500*ms, take, 1, alone,
		20,
		lease, 10, move, -time.Hour, take, 3, lease, 25, alone, 100, move, 2*time.Hour, take, 1, alone, 100,
	))
	// The smallest and the largest limits.
	f.Add(limit(1, 1, 24*time.Hour), shareSteps(
		alone, 1, alone, 1, move, 24*time.Hour-1, alone, 1, move, 1, alone, 1, move, time.Duration(1)<<61, alone, 1,
	))
	f.Add(limit(7, 3, 7*time.Microsecond), shareSteps(
		fleetOf, 3, alone, 2, move, 7*time.Microsecond, alone, 1, move, -1, alone, 1, move, 1, alone, 1,
	))
	f.Add(limit(1<<40, 1<<40, time.Microsecond), shareSteps(
		alone, int64(1)<<40, alone, 1, move, 1, alone, int64(1)<<40, move, -1, alone, 1<<20,
	))
	f.Add(limit(1<<40, 1, maxPerOfAPolicy), shareSteps(
		fleetOf, 1<<20, alone, 1<<20, alone, 1<<19, move, time.Duration(1)<<61, alone, 1,
	))

	f.Fuzz(func(t *testing.T, limit, steps []byte) {
		r := newShareRun(t, limit)
		for len(steps) > 0 {
			steps = r.step(steps)
		}
	})
}

// maxPerOfAPolicy is the longest period that package tiered lets a policy have.
const maxPerOfAPolicy = 100 * 365 * 24 * time.Hour

// The steps, and what the number after each is.
const (
	move    = iota // the clock, by so many ns, back or forth
	alone          // decide so many tokens without Redis
	take           // so many from the lease
	lease          // the bucket gets one of so many
	fleetOf        // so many processes, from now on
	stepKinds
)

// shareSteps writes steps as FuzzShareClock reads them: kinds and numbers in turn.
func shareSteps(pairs ...any) []byte {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		n := int64(0)
		switch x := pairs[i+1].(type) {
		case int:
			n = int64(x)
		case int64:
			n = x
		case time.Duration:
			n = int64(x)
		}
		if kind := pairs[i].(int); kind == move {
			b = binary.AppendVarint(append(b, byte(kind)), n)
		} else {
			b = binary.AppendUvarint(append(b, byte(kind)), uint64(n-1))
		}
	}
	return b
}

// shareRun is a bucket and what it may do, by another reckoning.
type shareRun struct {
	*testing.T
	p     local.Policy
	b     local.Bucket
	now   time.Duration
	seq   int64
	fleet int64

	// The ideal share. What the lease takes out of the real one is left in: so much the stricter is
	// the real one.
	told   bool
	level  float64
	burst  float64
	perNS  float64 // rate, tokens per ns
	latest time.Duration

	granted, fromLease, shared int64
}

func newShareRun(t *testing.T, limit []byte) *shareRun {
	next := func(least, most int64) int64 {
		x, n := binary.Uvarint(limit)
		limit = limit[max(n, 0):]
		return least + int64(x%uint64(most-least+1))
	}
	r := &shareRun{T: t, fleet: 1}
	r.p = local.Policy{
		Cap: next(1, lua.MostTokens), Tokens: next(1, lua.MostTokens),
		Per:    time.Duration(next(int64(time.Microsecond), int64(maxPerOfAPolicy))),
		Period: 250 * ms, Budget: 20 * ms, Timeout: 50 * ms, Uniform: func() float64 { return 0.5 },
	}
	r.b.Init(&r.p, "k")
	return r
}

// step takes one step off the front and returns the rest.
func (r *shareRun) step(steps []byte) []byte {
	kind, steps := steps[0]%stepKinds, steps[1:]
	if kind == move {
		d, n := binary.Varint(steps)
		const far = int64(1) << 62 // a century and a half: no clock of a process comes that far
		if at := int64(r.now) + d; at > -far && at < far && d > -far && d < far {
			r.now = time.Duration(at)
		}
		return steps[max(n, 0):]
	}
	x, n := binary.Uvarint(steps)
	steps = steps[max(n, 0):]
	tokens := 1 + int64(x%uint64(r.p.Cap)) // a cost is at most one burst
	switch kind {
	case alone:
		r.alone(tokens)
	case take:
		alive := r.alive()
		if _, ok, _ := r.b.Hot().Take(r.now, tokens); ok {
			r.spend(tokens, alive)
		}
	case lease:
		r.lease(tokens)
	case fleetOf:
		r.fleet = 1 + int64(x%(1<<20))
	}
	if s := r.b.Stats(); s.Fallback != r.shared || s.Spent != r.fromLease || s.Granted != r.granted || s.Held < 0 {
		r.Fatalf("%d alone and %d from %d leased, but %+v", r.shared, r.fromLease, r.granted, s)
	}
	if d := r.b.Demand(); !(d >= 0) || math.IsInf(d, 0) {
		r.Fatalf("a demand of %v/s", d)
	}
	return steps
}

// alone decides n tokens without Redis and looks at the answer.
func (r *shareRun) alone(n int64) {
	alive := r.alive()
	v := r.b.ByFailMode(r.now, n, r.fleet)
	if v.Left < 0 || v.Left > r.p.Cap {
		r.Fatalf("%d tokens alone: %+v of %d", n, v, r.p.Cap)
	}
	if v.Reason == local.Granted {
		r.spend(n, alive)
		return
	}
	r.pass()
	switch v.Reason {
	case local.Fallback:
		r.shared += n
		r.level -= float64(n)
		// Doubles keep 15 digits of what is at most one burst; x/time/rate takes a wait under 1 ns
		// for none.
		if r.level < -r.perNS-1e-6-1e-12*r.burst {
			r.Fatalf("%d tokens at %v, in a fleet of %d: an ideal share of %v would be at %v", n, r.now, r.fleet,
				r.burst, r.level)
		}
	case local.FallbackSpent:
		wait := (float64(n) - r.level) / r.perNS
		latest := wait + 1e-12*float64(n)/r.perNS // what float64 loses may be years, of a limit that is slow enough
		if v.Retry < 0 || v.Retry == 0 && float64(n) <= r.burst && latest < 9e18 {
			r.Fatalf("%d of at most %v tokens, which takes %v ns: retry after %v", n, r.burst, wait, v.Retry)
		}
		// Who comes back as told finds the tokens; not earlier than the ideal share has them.
		if v.Retry > 0 && float64(v.Retry) < wait*(1-1e-9)-1000 {
			r.Fatalf("%d tokens at %v, in a fleet of %d: retry after %v, which takes %v ns", n, r.now, r.fleet,
				v.Retry, wait)
		}
	default:
		r.Fatalf("%d tokens alone: %+v", n, v)
	}
}

// alive reports whether the lease is.
func (r *shareRun) alive() bool {
	return r.now < r.b.Deadline()
}

// pass lets the ideal share's time pass, and tells it the fleet.
func (r *shareRun) pass() {
	if r.told {
		r.level = min(r.level+r.perNS*float64(max(r.now-r.latest, 0)), r.burst)
	}
	r.latest = max(r.latest, r.now)
	r.burst = float64(max(r.p.Cap/r.fleet, 1))
	r.perNS = float64(r.p.Tokens) / float64(r.p.Per) / float64(r.fleet)
	if !r.told {
		r.told, r.level = true, r.burst
	}
	r.level = min(r.level, r.burst)
}

// spend counts tokens of the lease.
func (r *shareRun) spend(n int64, alive bool) {
	if r.fromLease += n; r.fromLease > r.granted || !alive {
		r.Fatalf("%d tokens at %v of a lease until %v: %d of %d", n, r.now,
			r.b.Deadline(), r.fromLease, r.granted)
	}
}

// lease lets two requests wait, so that a call for a lease is made, and answers it with at most n
// tokens.
func (r *shareRun) lease(n int64) {
	var line []*local.Waiter
	for range 2 {
		w := local.NewWaiter()
		alive := r.alive()
		switch v, _ := r.b.Ask(r.now, 1, r.now+r.p.Budget, w); v.Reason {
		case local.Granted:
			r.spend(1, alive)
		case local.Waiting:
			line = append(line, w)
		}
	}
	r.seq++
	r.b.SetDemand(lua.MostTokens) // so that it asks for more than the two
	c, _ := r.b.Begin(r.now, local.Conditions{Seq: r.seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: r.fleet})
	if r.pass(); c.Seq != 0 {
		if c.Hold < 0 || c.Hold > r.granted-r.fromLease || c.Owed > c.Debt || c.Debt > r.shared {
			r.Fatalf("%d granted, %d spent of it, %d alone: %+v", r.granted, r.fromLease, r.shared, c)
		}
		grant := min(n, c.Want)
		if grant < c.Min {
			grant = 0
		}
		r.granted += grant
		r.b.Accept(r.now, c.Seq, lua.Reply{Grant: grant, TTLLeft: c.TTL, Retry: us(time.Second), Epoch: 1})
	}
	for _, w := range line {
		if !r.b.Leave(w) {
			if v := <-w.C; v.Reason == local.Granted {
				r.spend(1, true) // what Redis granted this instant
			}
		}
	}
}
