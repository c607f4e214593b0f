package tiered_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A reset leaves what is leased in escrow: the bound holds across it.
func TestResetKeepsLeasesInEscrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(1000)}, nil)
		warm(t, l, "k", 300)
		ok(t, l.Reset(context.Background(), "k"))
		admitted := 0
		for range 3000 {
			if l.Allow(context.Background(), "k").Allowed {
				admitted++
			}
			time.Sleep(ms)
		}
		if admitted < 990 || admitted > 1001 {
			t.Errorf("%d admitted after the reset of a bucket of 1000", admitted)
		}
	})
}

// A key is full only when what its last lease held has been refilled, counted from the end of that lease: until then the
// process may spend it.
func TestLongLeasesKeepTheLimit(t *testing.T) {
	for name, also := range map[string][]tiered.Limit{"one limit": nil, "two limits": {tiered.PerHour(72_000)}} {
		bubble(t, name, func(t *testing.T) {
			store := newDistant(0)
			p := tiered.Policy{
				Name: "api", Limit: tiered.PerMinute(600), Also: also, FailMode: tiered.FailClosed,
				Lease: tiered.Lease{Size: 150, Period: 10 * time.Second}, // it lives for 40 s
			}
			var all []*tiered.Limiter
			for _, s := range []remote.Store{store, store.Memory} {
				all = append(all, limiter(t, s, p, nil))
			}
			time.Sleep(4 * time.Second)
			held, before := int64(0), int64(0)
			for i := 0; i < 200 || held <= before || held < 100; i++ { // until it has just leased
				all[0].Allow(t.Context(), "user")
				time.Sleep(125 * time.Millisecond)
				before, held = held, all[0].Group().Stats().Policies["api"].Leases.Held
			}
			store.loseRequests.Store(true)
			time.Sleep(42 * time.Second) // its lease is over for at most 2 s
			admitted := int64(0)
			for all[1].Allow(t.Context(), "user").Allowed {
				admitted++
			}
			if most := 600 - held + 2*10 + 1; admitted > most { // and the one that asked for the lease
				t.Errorf("%d of 600 were admitted when a lease of %d was over, want at most %d", admitted, held, most)
			}
		})
	}
}

// What a process gives back it can use again 5 s later, however long its leases last. (Issue 38; random plan 15841.)
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
			r := ls[0].ReserveN(t.Context(), "user", 25)
			for ls[1].Allow(t.Context(), "user").Allowed {
			}
			time.Sleep(30 * time.Second)
			if d := ls[0].Allow(t.Context(), "user"); !r.Allowed || d.Allowed {
				t.Fatalf("%+v %+v", r.Decision, d)
			}
			time.Sleep(time.Second)
			r.Cancel()
			time.Sleep(6 * time.Second)
			if d := ls[0].AllowN(t.Context(), "user", 25); !d.Allowed {
				t.Errorf("25 came back, and then: %v, %d remain, again after %v", d.Reason, d.Remaining, d.RetryAfter)
			}
		})
	}
}

// From some moment on every call is answered "late", so nothing is written any more. The lease ends when its record
// does, and other processes get its tokens.
func TestRefusalExtendsNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refuse := false
		store := newMeddling(func(int) meddle {
			if refuse {
				return answerLate
			}
			return leaveAlone
		})
		policy := tiered.Policy{
			Name: "api", Limit: tiered.PerSecond(1000), Lease: tiered.Lease{Size: 250},
			FailMode: tiered.FailClosed,
		}
		a, b := limiter(t, store, policy, nil), limiter(t, &distant{Memory: store.Memory, trip: ms}, policy, nil)
		warm(t, a, "k", 300)
		held := func() int64 {
			bucket, _ := tiered.Engine(a.Group()).Cache.Find(tiered.Core(a).ID("k"))
			n, _ := bucket.Peek(tiered.Engine(a.Group()).Now())
			return n
		}
		for range 3000 {
			a.Allow(ctx, "k")
			if time.Sleep(4 * ms); held() > 200 {
				break
			}
		}
		store.mu.Lock()
		refuse = true
		store.mu.Unlock()
		if held() <= 200 {
			t.Fatal("no lease: this shows nothing")
		}
		for range 80 { // it goes on being used, for 1.6 s
			a.Allow(ctx, "k")
			time.Sleep(20 * ms)
		}
		// In one instant, b takes what Redis has and a what it believes to hold.
		start := time.Now()
		total := int64(0)
		for n := int64(1000); n > 0; n -= 10 {
			if b.AllowN(ctx, "k", n).Allowed {
				total += n
				break
			}
		}
		if total < 900 {
			t.Fatalf("b got %d: this shows nothing", total)
		}
		for a.Allow(ctx, "k").Tier == tiered.Local {
			total++
		}
		if bound := 1000 + 1000*time.Since(start).Seconds(); float64(total) > bound+1e-3 {
			t.Errorf("%d admitted at once, bound %.1f", total, bound)
		}
		store.mu.Lock()
		refuse = false
		store.mu.Unlock()
	})
}

// A process without requests returns its lease and sends nothing more. If replies caused renewals, it would lease and
// return again for as long as it remembers the demand.
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

// A lease is renewed with a shorter life, because round trips became short, and the reply is lost. The lease ends
// when its record does, not at its former end.
func TestLostReplyOfAShorterLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := remote.NewMemory()
		far, near := &distant{Memory: memory, trip: 140 * ms}, &distant{Memory: memory, trip: ms}
		options := &tiered.Options{Budget: 200 * ms, Timeout: 200 * ms, Random: func() float64 { return 0.5 }}
		policy := tiered.Policy{Name: "api", Limit: tiered.PerSecond(100).WithBurst(400), FailMode: tiered.FailClosed}
		a, b := limiter(t, far, policy, options), limiter(t, near, policy, options)
		for range 300 { // a lease of four seconds
			a.Allow(ctx, "k")
			time.Sleep(20 * ms)
		}
		far.near.Store(true)
		for i := range 300 { // and now of one
			a.Allow(ctx, strconv.Itoa(i))
		}
		far.loseReplies.Store(true)
		for n := far.calls.Load(); far.calls.Load() == n; time.Sleep(5 * ms) {
			a.Allow(ctx, "k")
		}
		far.loseRequests.Store(true)
		lost := tiered.Engine(a.Group()).Now()
		bucket, _ := tiered.Engine(a.Group()).Cache.Find(tiered.Core(a).ID("k"))
		for range 9 { // used, so that it does not go home, but slowly; until its room has filled, were it over
			if held, _ := bucket.Peek(tiered.Engine(a.Group()).Now()); held == 0 && tiered.Engine(a.Group()).Now() < lost+900*ms {
				t.Fatal("nothing is held: this shows nothing")
			}
			time.Sleep(200 * ms)
			a.Allow(ctx, "k")
		}
		// In one instant, b takes what Redis has and a what it believes to hold.
		start := time.Now()
		want(t, b.AllowN(ctx, "k", 400), tiered.Granted)
		total := int64(400)
		for a.Allow(ctx, "k").Allowed {
			total++
		}
		if bound := 400 + 100*time.Since(start).Seconds(); float64(total) > bound+1e-3 {
			t.Errorf("%d admitted at once, bound %.1f", total, bound)
		}
		far.loseReplies.Store(false)
		far.loseRequests.Store(false)
	})
}

// A failed renewal is repeated although the key is not used any more. Its tokens are returned when the lease is idle.
func TestFailedRenewalIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &losing{distant: newDistant(ms), err: context.DeadlineExceeded}
		// Leases of ten seconds: an idle one goes back after twenty, and has nothing to do with what is seen here.
		policy := tiered.Policy{
			Name: "api", Limit: tiered.PerSecond(1000).WithBurst(100_000),
			Lease: tiered.Lease{Period: 10 * second},
		}
		l := limiter(t, store, policy, nil)
		for range 10_000 {
			l.Allow(t.Context(), "k")
			time.Sleep(2 * ms)
		}
		store.next.Store(1)
		for store.seen.Load() == 0 {
			l.Allow(t.Context(), "k")
			time.Sleep(2 * ms)
		}
		calls := store.calls.Load()
		begun := time.Now()
		for store.calls.Load() == calls {
			if time.Since(begun) > maxBackoff {
				t.Fatal("the renewal was not made again within a second")
			}
			time.Sleep(ms)
		}
		t.Logf("made again after %v", time.Since(begun))
		time.Sleep(time.Minute)
		if p := l.Stats(); p.Leases.Held > 0 {
			t.Errorf("a minute later %d tokens are held", p.Leases.Held)
		}
		books(t, l.Group())
	})
}
