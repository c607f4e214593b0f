package local_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A dry run may wait in the queue while its bucket is closed. It asks then too: Redis knows what is
// left.
func TestDryRunOfAClosedBucket(t *testing.T) {
	for _, a := range []lua.Algorithm{
		lua.TokenBucket, lua.FixedWindow, lua.SlidingWindow, lua.SlidingLog,
		lua.TokenBuckets,
	} {
		r := newRig(t, local.Policy{Cap: 100, Tokens: 100, Call: lua.Call{
			Algorithm: a, Cap: 100, Tokens: 100,
			Period: us(time.Second),
		}})
		w, _, _ := r.ask(5)
		r.b.Accept(r.now, r.begin().Seq, lua.Reply{Grant: 5, Level: 95})
		r.expect(w, local.Granted)
		if r.b.Retire(r.now); !r.b.Finish(r.now) {
			t.Fatalf("%v: it is not closed", a)
		}
		c, asks := r.b.DryRun(r.now, 5, local.Conditions{Seq: r.seq, Lease: "me", Clock: true, RoundTrip: ms, Fleet: 1})
		if !asks || c.Want != 5 || !c.Dry() {
			t.Errorf("%v: asks %v, %+v", a, asks, c)
		}
		if v := r.b.Foreseen(r.now, 5, c, lua.Reply{Grant: 5, Level: 95}); v.Reason != local.Granted {
			t.Errorf("%v: %+v", a, v)
		}
	}
}

// A lease of a slow limit that nobody uses goes back three periods after its last use at the
// latest, whether it was prolonged since or not, and when it would have to be prolonged if it was
// not used lately.
func TestAnIdleLeaseOfASlowLimitGoesBackSoon(t *testing.T) {
	for _, use := range []time.Duration{0, 100 * ms, 249 * ms, 251 * ms, 400 * ms, 499 * ms, 501 * ms, 700 * ms} {
		r := newRig(t, local.Policy{Cap: 1200, Tokens: 1200, Per: time.Hour, Call: lua.Call{Algorithm: lua.FixedWindow}})
		r.lease(100)
		r.b.SetDemand(4000) // until a moment ago it was in use
		leased := r.now
		e := r.b.Next(r.now)
		used := leased
		for i := 0; ; i++ {
			if i == 20 || e.Check == 0 && !e.Send {
				t.Fatalf("used after %v: %v after the last use it has not gone back: %+v", use, r.now-used, e)
			}
			if e.Send {
				c := r.begin()
				if c.Ret > 0 {
					break
				}
				e, _ = r.b.Accept(r.now, c.Seq, lua.Reply{TTLLeft: us(time.Second), Level: 800, Reset: us(time.Hour)})
				continue
			}
			if at := leased + use; used < at && at <= e.Check {
				r.now = at
				if _, ok, _ := r.b.Hot().Take(r.now, 1); !ok {
					t.Fatal("nothing to use")
				}
				used = at
			}
			r.now = e.Check
			e = r.b.Check(r.now)
		}
		if idle := r.now - used; idle > 750*ms || idle < 240*ms || use < 500*ms && r.now-leased > 750*ms {
			t.Errorf("used after %v: it went back after %v, %v after the last use", use, r.now-leased, idle)
		}
	}
}
