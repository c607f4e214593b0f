package tiered_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key loses its limit while its tokens are out. They are returned with the numbers that the key had. No call states
// others, the store counts what was used, and a process that still limits the key sees no difference.
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
	p.Name = "api"
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

// Reserved tokens are returned also if their bucket was evicted, unless a copy of the process may return them too.
// Tokens that are not returned count as burnt, not as spent.
func TestCancelAfterEviction(t *testing.T) {
	for _, p := range []tiered.Policy{
		{Limit: tiered.PerDay(100), Lease: neverLeased},
		{Limit: tiered.PerHour(10_000)},
		{Limit: tiered.PerDay(100), Also: []tiered.Limit{tiered.PerHour(80)}, Lease: neverLeased},
		{Limit: tiered.PerDay(100), Algorithm: tiered.FixedWindow},
		{Limit: tiered.PerDay(100), Algorithm: tiered.SlidingLog},
		{Limit: tiered.PerDay(100), Algorithm: tiered.SlidingWindow},
		{Limit: tiered.PerDay(100), Algorithm: tiered.SlidingWindow, Also: []tiered.Limit{tiered.PerHour(80)}},
	} {
		p.Name = "api"
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
			t.Run(fmt.Sprint(p.Algorithm, " ", p.Limit.Tokens, "/", len(p.Also), "/", c.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, ctx := newTape(), t.Context()
					watch := several(t, store, nil, p)[0]
					all := several(t, store, &tiered.Options{MaxKeys: 4}, p, direct("others", 1000))
					l, others := all[0], all[1]
					time.Sleep(time.Hour)
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
