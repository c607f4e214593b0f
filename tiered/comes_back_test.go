package tiered

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// A key loses its limit while its tokens are out. They are returned with the numbers that the key had. No call states
// others, the store counts what was used, and a process that still limits the key sees no difference.
func TestWhatComesBackToAKeyWithoutALimit(t *testing.T) {
	notUnderRace(t)
	for _, kind := range []struct {
		name string
		p    Policy
	}{
		{"token bucket", Policy{Limit: PerDay(50)}},
		{"token bucket, direct", Policy{Limit: PerDay(50), Lease: Lease{Size: NoLease}}},
		{"token bucket, large", Policy{Limit: PerDay(10_000)}},
		{"fixed window", Policy{Limit: PerDay(50), Algorithm: FixedWindow}},
		{"fixed window, calendar", Policy{Limit: PerDay(50), Algorithm: FixedWindow, Calendar: true}},
		{"sliding log", Policy{Limit: PerDay(50), Algorithm: SlidingLog}},
		{"sliding window", Policy{Limit: PerDay(50), Algorithm: SlidingWindow}},
	} {
		for _, back := range []struct {
			name string
			f    func(Reservation)
			used int64 // of 10
		}{
			{"canceled", Reservation.Cancel, 0}, {"cheaper", settle(4), 4}, {"dearer", settle(25), 25},
		} {
			for rule, to := range map[string]Limit{"unlimited": Unlimited(), "blocked": Blocked()} {
				for _, perKey := range []bool{true, false} {
					if !perKey && (kind.p.Algorithm == FixedWindow || kind.p.Algorithm == SlidingLog) {
						continue // of these PerKey alone may return such a rule
					}
					for _, when := range []string{"at once", "after a lease's life", "evicted"} {
						t.Run(fmt.Sprint(kind.name, "/", back.name, "/", rule, "/PerKey ", perKey, "/", when),
							func(t *testing.T) {
								t.Parallel() // in virtual time
								synctest.Test(t, func(t *testing.T) {
									comesBack(t, kind.p, to, perKey, when, back.f, back.used)
								})
							})
					}
				}
			}
		}
	}
}

func comesBack(t *testing.T, p Policy, to Limit, perKey bool, when string, back func(Reservation), used int64) {
	p.Name = "api"
	limit, store, ctx := p.Limit, newTape(), t.Context()
	watch := several(t, store, nil, p)[0]
	var now atomic.Pointer[Limit]
	now.Store(&limit)
	if perKey {
		p.Limit.Tokens, p.Limit.Burst = 90, 0 // whose numbers are no key's
		p.PerKey = func(key string) Limit { return *now.Load() }
	}
	all := several(t, store, &Options{MaxKeys: 4}, p, direct("others", 1000))
	l, others := all[0], all[1]
	change := func(to Limit) {
		if now.Store(&to); perKey {
			l.Refresh("k")
			return
		}
		set(t, l, limitTo(to))
	}
	real := map[lua.Limit]bool{}
	c := watch.settings.Load().initial.Call
	real[lua.Limit{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}] = true

	time.Sleep(time.Hour)
	want(t, l.AllowN(ctx, "k", 10), Granted)
	time.Sleep(10 * second)
	r := l.ReserveN(ctx, "k", 10)
	want(t, r.Decision, Granted)
	change(to)
	if d := l.Allow(ctx, "k"); d.Allowed != (to == Unlimited()) || d.Tier != Local {
		t.Fatalf("%+v", d)
	}
	switch when {
	case "after a lease's life":
		time.Sleep(5 * second)
	case "evicted":
		for i := range 20 {
			want(t, others.Allow(ctx, fmt.Sprint(i)), Granted)
			time.Sleep(200 * ms)
		}
		if _, ok := l.group.cache.Find(l.id("k")); ok {
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
		t.Errorf("%d of %d are left, want %d: %+v", left, limit.Tokens, want, l.group.Stats().Policies["api"])
	}
	change(limit)
	if d := l.AllowN(ctx, "k", 1); !d.Allowed {
		t.Errorf("%+v", d)
	}
	if after := watch.Peek(ctx, "k").Remaining; after >= left && p.Lease.Size == NoLease {
		t.Errorf("%d are left after one more, of %d", after, left)
	}
	books(t, l.group)
}

// Reserved tokens are returned also if their bucket was evicted, unless a copy of the process may return them too.
// Tokens that are not returned count as burnt, not as spent.
func TestCancelAfterEviction(t *testing.T) {
	for _, p := range []Policy{
		{Limit: PerDay(100), Lease: Lease{Size: NoLease}},
		{Limit: PerHour(10_000)},
		{Limit: PerDay(100), Also: []Limit{PerHour(80)}, Lease: Lease{Size: NoLease}},
		{Limit: PerDay(100), Algorithm: FixedWindow},
		{Limit: PerDay(100), Algorithm: SlidingLog},
		{Limit: PerDay(100), Algorithm: SlidingWindow},
		{Limit: PerDay(100), Algorithm: SlidingWindow, Also: []Limit{PerHour(80)}},
	} {
		p.Name = "api"
		for _, c := range []struct {
			name                string
			meanwhile           func(l *Limiter)
			back                func(Reservation)
			left, burnt         int64 // of 60 that were taken: what is missing in Redis, and what is burnt
			returned, spentLess int64
		}{
			{"nothing happens", func(*Limiter) {}, Reservation.Cancel, 0, 0, 60, 60},
			{"a part goes back", func(*Limiter) {}, settle(45), 45, 0, 15, 15},
			{
				"the key is in use again", func(l *Limiter) { l.Allow(context.Background(), "k") }, Reservation.Cancel,
				1, 0, 60, 60,
			},
			{"the machine stands still", func(l *Limiter) {
				l.group.wallAhead.Add(-int64(time.Second))
				l.Allow(context.Background(), "j") // which notices
			}, Reservation.Cancel, 60, 60, 0, 60},
			{
				"the Group closes", func(l *Limiter) { _ = l.group.Close(context.Background()) }, settle(50), 60, 10, 0,
				10,
			},
		} {
			t.Run(fmt.Sprint(p.Algorithm, " ", p.Limit.Tokens, "/", len(p.Also), "/", c.name),
				func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						store, ctx := newTape(), t.Context()
						watch := several(t, store, nil, p)[0]
						all := several(t, store, &Options{MaxKeys: 4}, p, direct("others", 1000))
						l, others := all[0], all[1]
						time.Sleep(time.Hour)
						r := l.ReserveN(ctx, "k", 60)
						want(t, r.Decision, Granted)
						for i := range 20 {
							want(t, others.Allow(ctx, fmt.Sprint(i)), Granted)
							time.Sleep(200 * ms)
						}
						if _, ok := l.group.cache.Find(l.id("k")); ok {
							t.Fatal("not evicted")
						}
						full, before := watch.Peek(ctx, "k").Burst, l.group.Stats().Policies["api"]
						c.meanwhile(l)
						spent := l.group.Stats().Policies["api"].Spent
						c.back(r)
						c.back(r)
						time.Sleep(100 * ms)
						if n := watch.Peek(ctx, "k").Remaining; n < full-c.left || n > full-c.left+full/1000+1 {
							t.Errorf("%d of %d are left, want %d to be missing", n, full, c.left)
						}
						s := l.group.Stats().Policies["api"]
						if s.Burnt-before.Burnt != c.burnt || s.Returned-before.Returned != c.returned ||
							spent-s.Spent != c.spentLess {
							t.Errorf("%+v, before %+v and %d spent, want %d burnt and %d returned", s, before, spent,
								c.burnt, c.returned)
						}
						books(t, l.group)
					})
				})
		}
	}
}
