package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// leased gives a Limiter a lease of key "k" that is neither about to be renewed nor to go home.
func leased(t *testing.T, l *tiered.Limiter) *engine.Bucket {
	t.Helper()
	warm(t, l, "k", 300)
	b, _ := tiered.Engine(l.Group()).Cache.Find(tiered.Core(l).ID("k"))
	for range 1000 {
		calls := node(l).Calls.Sent
		r := l.ReserveN(ctx, "k", 3)
		time.Sleep(2 * ms)
		if held, _ := b.Peek(tiered.Engine(l.Group()).Now()); held > 20 && node(l).Calls.Sent == calls &&
			r.Tier == tiered.Local {
			return b
		}
	}
	t.Fatal("no lease")
	return nil
}

// Tokens that were admitted without Redis and then returned are not charged.
func TestCancelOfWhatWasAdmittedAlone(t *testing.T) {
	for _, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen} {
		synctest.Test(t, func(t *testing.T) {
			store := newTape()
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerDay(100), FailMode: mode}, &tiered.Options{
				Random: func() float64 { return 1 }, // so that no probe is due while the requests come, and tells of them
			})
			want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
			silence(t, store.distant, l)
			var all []tiered.Reservation
			for range 10 {
				r := l.ReserveN(ctx, "k", 5)
				if r.Reason != tiered.Fallback && r.Reason != tiered.Open {
					t.Fatalf("%+v", r.Decision)
				}
				all = append(all, r)
			}
			for i, r := range all {
				if i < 4 {
					r.Cancel()
				}
			}
			all[4].Settle(2)
			all[5].Settle(15)
			store.loseRequests.Store(false)
			time.Sleep(5 * time.Second)
			l.Allow(ctx, "k") // the debt goes with the next call
			time.Sleep(time.Second)
			// 90 − 50 + 4·5 + 3 − 10 − 1.
			if n := level(t, store.Memory, l, "k"); n != 52 {
				t.Errorf("%v: %d in Redis, want 52", mode, n)
			}
			var debt, refund int64
			for _, c := range store.since(time.Time{}) {
				if c.Bucket == store.Key("api", "k") {
					debt, refund = debt+c.Debt, refund+c.Refund
				}
			}
			if n := l.Stats().Costs.Refunded; n != 0 {
				t.Errorf("%v: %d tokens are counted as given back, and Redis has granted none of them", mode, n)
			}
			if debt != 37 || refund != 0 { // a refund would be credited even where lost refill has paid for the debt
				t.Errorf("%v: a debt of %d and a refund of %d were sent, want 37 and none", mode, debt, refund)
			}
			all[9].Cancel() // too late: it was charged, and is not given back twice over
			time.Sleep(time.Second)
			if n := level(t, store.Memory, l, "k"); n > 57 {
				t.Errorf("%v: %d in Redis", mode, n)
			}
			books(t, l.Group())
		})
	}
}

// Cancel gives all tokens back, whether they were leased, and whatever was told to Redis since in
// which block.
func TestCancelGivesBackInALaterBlock(t *testing.T) {
	limits := map[tiered.Algorithm]tiered.Limit{
		tiered.TokenBucket: tiered.PerDay(10_000), tiered.FixedWindow: tiered.PerDay(10_000),
		tiered.SlidingWindow: tiered.PerSecond(10_000), tiered.SlidingLog: tiered.PerSecond(10_000), // blocks of 25 ms
	}
	for a, limit := range limits {
		for _, between := range []int64{0, 1, 300} { // tokens taken before the Cancel
			for _, later := range []time.Duration{0, 60 * time.Millisecond, 400 * time.Millisecond} {
				bubble(t, fmt.Sprint(a, " ", between, " ", later), func(t *testing.T) {
					l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: limit, Algorithm: a}, nil)
					time.Sleep(4 * time.Second)
					l.AllowN(ctx, "user", 2500)
					time.Sleep(60 * time.Millisecond)
					r := l.ReserveN(ctx, "user", 100)
					time.Sleep(later / 2)
					for range between {
						if !l.Allow(ctx, "user").Allowed {
							t.Fatal("refused")
						}
						time.Sleep(100 * time.Microsecond)
					}
					time.Sleep(later / 2)
					r.Cancel()
					time.Sleep(60 * time.Millisecond)
					if d := l.Peek(ctx, "user"); d.Remaining < 7500-between {
						t.Errorf("%d of 10000 are used, 100 were reserved and canceled, and %d remain", 2500+between, d.Remaining)
					}
				})
			}
		}
	}
}

// A key loses its limit while its tokens are out. They are returned with the numbers that the key
// had. No call states others, the store counts what was used, and a process that still limits the
// key sees no difference.
func TestWhatComesBackToAKeyWithoutALimit(t *testing.T) {
	notUnderRace(t)
	for _, kind := range []struct {
		name string
		p    tiered.Policy
	}{
		{"token bucket", tiered.Policy{Limit: tiered.PerDay(50)}},
		{"token bucket, direct", tiered.Policy{Limit: tiered.PerDay(50), Lease: neverLeased}},
		{"token bucket, large", tiered.Policy{Limit: tiered.PerDay(10_000)}},
		{"fixed window", tiered.Policy{Limit: tiered.PerDay(50), Algorithm: tiered.FixedWindow}},
		{"fixed window, calendar", tiered.Policy{Limit: tiered.PerDay(50), Algorithm: tiered.FixedWindow, Calendar: true}},
		{"sliding log", tiered.Policy{Limit: tiered.PerDay(50), Algorithm: tiered.SlidingLog}},
		{"sliding window", tiered.Policy{Limit: tiered.PerDay(50), Algorithm: tiered.SlidingWindow}},
	} {
		for _, back := range []struct {
			name string
			f    func(tiered.Reservation)
			used int64 // of 10
		}{
			{"canceled", tiered.Reservation.Cancel, 0}, {"cheaper", settle(4), 4}, {"dearer", settle(25), 25},
		} {
			for rule, to := range map[string]tiered.Limit{"unlimited": tiered.Unlimited(), "blocked": tiered.Blocked()} {
				for _, perKey := range []bool{true, false} {
					if !perKey && (kind.p.Algorithm == tiered.FixedWindow || kind.p.Algorithm == tiered.SlidingLog) {
						continue // of these PerKey alone may return such a rule
					}
					for _, when := range []string{"at once", "after a lease's life", "evicted"} {
						t.Run(fmt.Sprint(kind.name, "/", back.name, "/", rule, "/PerKey ", perKey, "/", when),
							func(t *testing.T) {
								t.Parallel() // in virtual time
								synctest.Test(t, func(t *testing.T) {
									givenBackLater(t, kind.p, to, perKey, when, back.f, back.used)
								})
							})
					}
				}
			}
		}
	}
}

func givenBackLater(t *testing.T, p tiered.Policy, to tiered.Limit, perKey bool, when string,
	back func(tiered.Reservation), used int64,
) {
	limit, store, ctx := p.Limit, newTape(), t.Context()
	watch := several(t, store, nil, p)[0]
	var now atomic.Pointer[tiered.Limit]
	now.Store(&limit)
	if perKey {
		p.Limit.Tokens, p.Limit.Burst = 90, 0 // whose numbers are no key's
		p.PerKey = func(key string) tiered.Limit { return *now.Load() }
	}
	all := several(t, store, &tiered.Options{MaxKeys: 4}, p, direct("others", 1000))
	l, others := all[0], all[1]
	change := func(to tiered.Limit) {
		if now.Store(&to); perKey {
			l.Refresh("k")
			return
		}
		set(t, l, limitTo(to))
	}
	real := map[lua.Limit]bool{}
	c := tiered.Core(watch).Settings().Initial.Call
	real[lua.Limit{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}] = true

	time.Sleep(time.Hour)
	want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
	time.Sleep(10 * second)
	r := l.ReserveN(ctx, "k", 10)
	want(t, r.Decision, tiered.Granted)
	change(to)
	if d := l.Allow(ctx, "k"); d.Allowed != (to == tiered.Unlimited()) || d.Tier != tiered.Local {
		t.Fatalf("%+v", d)
	}
	switch when {
	case "after a lease's life":
		time.Sleep(5 * second)
	case "evicted":
		for i := range 20 {
			want(t, others.Allow(ctx, fmt.Sprint(i)), tiered.Granted)
			time.Sleep(200 * ms)
		}
		if _, ok := tiered.Engine(l.Group()).Cache.Find(tiered.Core(l).ID("k")); ok {
			t.Fatal("not evicted")
		}
	}
	back(r)
	time.Sleep(2 * second)
	for _, c := range store.since(time.Time{}) {
		if n := (lua.Limit{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}); c.Cap != 1000 && !real[n] {
			t.Errorf("a call was made by %+v, want one of %v", n, real)
		}
	}
	left := watch.Peek(ctx, "k").Remaining
	if want := limit.Tokens - 10 - used; left < want || left > want+want/1000+1 { // what came back in some seconds
		t.Errorf("%d of %d are left, want %d: %+v", left, limit.Tokens, want, l.Stats())
	}
	change(limit)
	if d := l.AllowN(ctx, "k", 1); !d.Allowed {
		t.Errorf("%+v", d)
	}
	if after := watch.Peek(ctx, "k").Remaining; after >= left && p.Lease.Size == tiered.NoLease {
		t.Errorf("%d are left after one more, of %d", after, left)
	}
	books(t, l.Group())
}

// Reserved tokens are returned also if their bucket was evicted, unless a copy of the process may
// return them too. Tokens that are not returned count as burnt, not as spent.
func TestCancelAfterEviction(t *testing.T) {
	t.Parallel()
	for _, p := range []tiered.Policy{
		{Limit: tiered.PerDay(100), Lease: neverLeased},
		{Limit: tiered.PerHour(10_000)},
		{Limit: tiered.PerDay(100).And(tiered.PerHour(80)), Lease: neverLeased},
		{Limit: tiered.PerDay(100), Algorithm: tiered.FixedWindow},
		{Limit: tiered.PerDay(100), Algorithm: tiered.SlidingLog},
		{Limit: tiered.PerDay(100), Algorithm: tiered.SlidingWindow},
		{Limit: tiered.PerDay(100).And(tiered.PerHour(80)), Algorithm: tiered.SlidingWindow},
	} {
		for _, c := range []struct {
			name                string
			meanwhile           func(l *tiered.Limiter)
			back                func(tiered.Reservation)
			left, burnt         int64 // of 60 that were taken: what is missing in Redis, and what is burnt
			returned, spentLess int64
		}{
			{"nothing happens", func(*tiered.Limiter) {}, tiered.Reservation.Cancel, 0, 0, 60, 60},
			{"a part goes back", func(*tiered.Limiter) {}, settle(45), 45, 0, 15, 15},
			{
				"the key is in use again", func(l *tiered.Limiter) {
					l.Allow(context.Background(), "k")
				}, tiered.Reservation.Cancel,
				1, 0, 60, 60,
			},
			{"the machine stands still", func(l *tiered.Limiter) {
				tiered.Engine(l.Group()).StandStill(time.Second)
				l.Allow(context.Background(), "j") // which notices
			}, tiered.Reservation.Cancel, 60, 60, 0, 60},
			{
				"the Group closes", func(l *tiered.Limiter) { _ = l.Group().Close(context.Background()) }, settle(50), 60, 10, 0,
				10,
			},
		} {
			t.Run(fmt.Sprint(p.Algorithm, " ", p.Limit.Tokens, "/", len(p.Limit.Each())-1, "/", c.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, ctx := newTape(), t.Context()
					watch := several(t, store, nil, p)[0]
					all := several(t, store, &tiered.Options{MaxKeys: 4}, p, direct("others", 1000))
					l, others := all[0], all[1]
					time.Sleep(time.Minute)
					r := l.ReserveN(ctx, "k", 60)
					want(t, r.Decision, tiered.Granted)
					for i := range 20 {
						want(t, others.Allow(ctx, fmt.Sprint(i)), tiered.Granted)
						time.Sleep(200 * ms)
					}
					if _, ok := tiered.Engine(l.Group()).Cache.Find(tiered.Core(l).ID("k")); ok {
						t.Fatal("not evicted")
					}
					full, before := watch.Peek(ctx, "k").Burst, l.Stats()
					c.meanwhile(l)
					spent := l.Stats().Leases.Spent
					c.back(r)
					c.back(r)
					time.Sleep(100 * ms)
					if n := watch.Peek(ctx, "k").Remaining; n < full-c.left || n > full-c.left+full/1000+1 {
						t.Errorf("%d of %d are left, want %d to be missing", n, full, c.left)
					}
					s := l.Stats()
					if s.Leases.Burnt-before.Leases.Burnt != c.burnt || s.Leases.Returned-before.Leases.Returned != c.returned ||
						spent-s.Leases.Spent != c.spentLess {
						t.Errorf("%+v, before %+v and %d spent, want %d burnt and %d returned", s, before, spent,
							c.burnt, c.returned)
					}
					books(t, l.Group())
				})
			})
		}
	}
}

// Tokens of a bucket that was evicted do not go into the lease that its key has now: Redis does not
// know them as part of that.
func TestCancelAfterEvictionLeavesTheLeaseAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10_000)}, &tiered.Options{MaxKeys: 4})
		first := leased(t, l)
		r := l.ReserveN(ctx, "k", 10)
		if want(t, r.Decision, tiered.Granted); r.Tier != tiered.Local {
			t.Fatalf("%+v, want tokens of the lease", r.Decision)
		}
		for i := range 100 {
			l.Allow(ctx, fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		b := leased(t, l)
		if b == first {
			t.Fatal("not evicted")
		}
		held, _ := b.Peek(tiered.Engine(l.Group()).Now())
		r.Cancel()
		if n, _ := b.Peek(tiered.Engine(l.Group()).Now()); n != held {
			t.Errorf("%d held, %d before Cancel", n, held)
		}
	})
}

// A lease that is spent because Redis does not answer is no debt, and its tokens are given back to
// Redis.
func TestCancelOfALeaseThatTheFailModeSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10_000)}, nil)
		b := leased(t, l)
		store.loseRequests.Store(true)
		held, _ := b.Peek(tiered.Engine(l.Group()).Now())
		var all sync.WaitGroup
		all.Go(func() { l.AllowN(ctx, "k", held+100) })
		time.Sleep(ms)
		r := l.ReserveN(ctx, "k", 7) // behind the other, so not from the lease at once
		if want(t, r.Decision, tiered.Granted); r.Tier != tiered.Local {
			t.Fatalf("%+v", r.Decision)
		}
		all.Wait()
		before := l.Stats()
		r.Cancel()
		s := l.Stats()
		if n := s.Costs.Refunded - before.Costs.Refunded; n != 7 {
			t.Errorf("%d tokens are given back, want 7", n)
		}
		if n := before.Leases.Spent - s.Leases.Spent; n != 7 {
			t.Errorf("%d tokens fewer are spent, want 7", n)
		}
		store.loseRequests.Store(false)
		time.Sleep(time.Minute)
		books(t, l.Group())
	})
}

// Tokens of a lease that was renewed since are known by when they were counted, so that they go
// back and are not burnt.
func TestCancelGivesBackWhatARenewalHasTold(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow} {
		bubble(t, a.String(), func(t *testing.T) {
			l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10_000), Algorithm: a}, nil)
			b := leased(t, l)
			r := l.ReserveN(ctx, "k", 5)
			if want(t, r.Decision, tiered.Granted); r.Tier != tiered.Local {
				t.Fatalf("%+v, want tokens of the lease", r.Decision)
			}
			held, _ := b.Peek(tiered.Engine(l.Group()).Now())
			if d := l.AllowN(ctx, "k", held+50); d.Tier != tiered.Remote {
				t.Fatalf("%+v", d)
			}
			before := l.Stats().Leases
			r.Cancel()
			time.Sleep(100 * ms)
			if s := l.Stats().Leases; s.Burnt != before.Burnt || s.Returned-before.Returned < 5 {
				t.Errorf("%+v, before Cancel %+v: want 5 returned", s, before)
			}
		})
	}
}
