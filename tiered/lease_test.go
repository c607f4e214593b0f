package tiered_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key is full only when what its last lease held has been refilled, counted from the end of that
// lease: until then the process may spend it.
func TestLongLeasesKeepTheLimit(t *testing.T) {
	for name, also := range map[string][]tiered.Limit{"one limit": nil, "two limits": {tiered.PerHour(72_000)}} {
		bubble(t, name, func(t *testing.T) {
			store := newDistant(0)
			p := tiered.Policy{
				Name: "api", Limit: tiered.PerMinute(600).And(also...), FailMode: tiered.FailClosed,
				Lease: tiered.Lease{Size: 150, Period: 10 * time.Second}, // it lives for 40 s
			}
			var all []*tiered.Limiter
			for _, s := range []remote.Store{store, store.Memory} {
				all = append(all, limiter(t, s, p, nil))
			}
			time.Sleep(4 * time.Second)
			held, before := int64(0), int64(0)
			for i := 0; i < 200 || held <= before || held < 100; i++ { // until it has just leased
				all[0].Allow(ctx, "user")
				time.Sleep(125 * time.Millisecond)
				before, held = held, all[0].Group().Stats().Policies["api"].Leases.Held
			}
			store.loseRequests.Store(true)
			time.Sleep(42 * time.Second) // its lease is over for at most 2 s
			admitted := int64(0)
			for all[1].Allow(ctx, "user").Allowed {
				admitted++
			}
			if most := 600 - held + 2*10 + 1; admitted > most { // and the one that asked for the lease
				t.Errorf("%d of 600 were admitted when a lease of %d was over, want at most %d", admitted, held, most)
			}
		})
	}
}

// What a process gives back it can use again 5 s later, however long its leases last. (Issue 38;
// random plan 15841.)
func TestLongLeasesSeeWhatComesBack(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow} {
		bubble(t, a.String(), func(t *testing.T) {
			store := remote.NewMemory()
			p := tiered.Policy{
				Name: "api", Algorithm: a, Limit: tiered.PerDay(100), Lease: tiered.Lease{Period: time.Minute},
			}
			var ls [2]*tiered.Limiter
			for i := range ls {
				l := limiter(t, store, p, nil)
				ls[i] = l
			}
			time.Sleep(4 * time.Second)
			r := ls[0].ReserveN(ctx, "user", 25)
			for ls[1].Allow(ctx, "user").Allowed {
			}
			time.Sleep(30 * time.Second)
			if d := ls[0].Allow(ctx, "user"); !r.Allowed || d.Allowed {
				t.Fatalf("%+v %+v", r.Decision, d)
			}
			time.Sleep(time.Second)
			r.Cancel()
			time.Sleep(6 * time.Second)
			if d := ls[0].AllowN(ctx, "user", 25); !d.Allowed {
				t.Errorf("25 came back, and then: %v, %d remain, again after %v", d.Reason, d.Remaining, d.RetryAfter)
			}
		})
	}
}

// A process without requests returns its lease and sends nothing more. If replies caused renewals,
// it would lease and return again for as long as it remembers the demand.
func TestOnlyDecisionsAskForRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(2000)}, nil)
		warm(t, l, "k", 2000)
		before := store.calls.Load()
		time.Sleep(20 * time.Second)
		if n := store.calls.Load() - before; n < 1 || n > 2 {
			t.Errorf("%d calls for a key that nobody asks for, want its return, after a renewal that was under way", n)
		}
		if held := l.Stats().Leases.Held; held != 0 {
			t.Errorf("%d tokens still held", held)
		}
	})
}

// A lease that was refused keeps few tokens from other processes when nobody waits for it any more.
// By this Timeout its record lives for 6 s, and for as long Redis takes into account what was
// wanted. (Random plan 24203.)
func TestRefusedLeaseKeepsFewTokens(t *testing.T) {
	const seeds, least = 8, 0.95
	admitted := 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(2 * ms)
			p := tiered.Policy{Limit: tiered.PerSecond(100), FailMode: tiered.FailClosed}
			o := &tiered.Options{Timeout: 3 * second}
			busy, gone := limiter(t, store, p, o), limiter(t, store, p, o)
			gone.AllowN(ctx, "user", 100)
			soon, cancel := context.WithTimeout(ctx, 2*ms) // what such a caller asks for is leased
			defer cancel()
			gone.AllowN(soon, "user", 100)

			r, start := rand.New(rand.NewPCG(seed, 1)), time.Now()
			for time.Since(start) < 5*second {
				time.Sleep(time.Duration(r.ExpFloat64() / 300 * 1e9))
				if busy.Allow(ctx, "user").Allowed && time.Since(start) > second { // by then Redis keeps what it keeps at most
					admitted++
				}
			}
		})
	}
	if part := float64(admitted) / (seeds * 400); part < least {
		t.Errorf("%.3f of the limit were admitted, want %v", part, least)
	}
}
