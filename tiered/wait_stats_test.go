package tiered_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The hook receives the last decision of each wait, also if the first in the queue asked for the
// others.
func TestDecisionsOfThoseWhoWait(t *testing.T) {
	for _, lease := range []tiered.Lease{{}, {Size: tiered.NoLease}} {
		synctest.Test(t, func(t *testing.T) {
			var allowed, refused int
			store := newDistant(15 * ms)
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(1000), Lease: lease}, &tiered.Options{
				Trace: &tiered.Trace{Decision: func(d tiered.Decision) {
					if d.Allowed && d.Reason == tiered.Granted && d.Remaining >= 0 && d.Burst == 1000 {
						allowed++
					} else {
						refused++
					}
				}},
			})
			want(t, l.AllowN(ctx, "k", 1000), tiered.Granted)
			var all sync.WaitGroup
			const waiters = 500
			for range waiters {
				all.Go(func() {
					ok(t, l.Wait(ctx, "k"))
				})
			}
			all.Wait()
			synctest.Wait() // hooks are called a little later
			if allowed != 1+waiters || refused != 0 || store.calls.Load() > waiters/2 {
				t.Errorf("the hook heard of %d admissions and %d refusals; %d calls", allowed, refused,
					store.calls.Load())
			}
		})
	}
}

// Repeated attempts of a waiter are no demand: the size of a lease follows the requests that came.
func TestWhoAsksAgainIsNoDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100), FailMode: tiered.FailLocal}, nil)
		want(t, l.AllowN(t.Context(), "k", 100), tiered.Granted)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { l.WaitN(ctx, "k", 100) }) //nolint:errcheck // called off
		}
		time.Sleep(900 * ms)
		cancel()
		all.Wait()
		for range 20 { // at home all that waited for nothing is no demand
			l.Allow(t.Context(), "k")
			time.Sleep(10 * ms)
		}
		if s := l.Stats(); s.Leases.Held > 25 || s.Waiting.GaveUp != 3 || s.Waiting.Now != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The figures and the hook report how each wait ended.
func TestWaitsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var events []tiered.Event
		trace := &tiered.Trace{Wait: func(e tiered.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
		}}
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerSecond(1)}, &tiered.Options{Trace: trace})
		if err := l.Wait(ctx, "k"); err != nil { // at once: no wait
			t.Fatal(err)
		}
		q := &queue{t: t, l: l}
		q.join(ctx, 0, "k", 1)
		called, off := context.WithCancel(ctx)
		q.join(called, 1, "k", 1)
		late, cancel := context.WithTimeout(ctx, 1500*ms)
		defer cancel()
		time.Sleep(10 * ms)
		if s := l.Stats(); s.Waiting.Now != 2 {
			t.Errorf("%+v, want two to wait", s)
		}
		if err := l.Wait(late, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(200 * ms)
		off()
		q.all.Wait()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(events) != 3 {
			t.Fatalf("%+v", events)
		}
		for i, e := range []struct {
			least, most time.Duration
			is          error
			waiting     int64
		}{{0, 0, tiered.ErrLimited, 2}, {200 * ms, 220 * ms, context.Canceled, 1}, {980 * ms, 1020 * ms, nil, 0}} {
			got := events[i]
			if got.Policy != "api" || got.Key != "k" || got.Asked != 1 ||
				got.Time < e.least || got.Time > e.most || !errors.Is(got.Err, e.is) || got.Waiting != e.waiting {
				t.Errorf("event %d is %+v, want %+v", i, got, e)
			}
		}
		if s := l.Stats(); s.Waiting.Now != 0 || s.Waiting.Admitted != 1 || s.Waiting.GaveUp != 2 ||
			s.Waiting.Longest != events[2].Time ||
			s.Waiting.Time != events[1].Time+events[2].Time || s.Tokens.Limited != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// While Redis does not answer, waiters for the share do not count as refused either.
func TestWhoWaitsForTheShareIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerMinute(6)}, &tiered.Options{Processes: 2})
		silence(t, store, l)
		before := l.Stats().Tokens.FallbackSpent
		q := &queue{t: t, l: l}
		for i := range 6 { // the share is 3, and one in 20 s
			q.join(ctx, i, "k", 1)
		}
		q.all.Wait()
		q.granted()
		s := l.Stats()
		if s.Tokens.FallbackSpent != before || s.Tokens.Limited != 0 || s.Waiting.Admitted != 3 {
			t.Errorf("%+v, %d by the share before", s, before)
		}
		for _, k := range s.Top {
			if k.Key == "k" {
				t.Errorf("%+v is among those who were refused", k)
			}
		}
		store.loseRequests.Store(false)
	})
}

// Nor do those who wait for several keys together.
func TestWhoWaitsElsewhereIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := several(t, newDistant(ms), nil,
			tiered.Policy{Limit: tiered.PerSecond(20)}, tiered.Policy{Name: "user", Limit: tiered.PerSecond(10)})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				ok(t, l[0].Wait(ctx, "k"))
			})
			all.Go(func() {
				ok(t, tiered.All(l[0].For("other"), l[1].For("ann")).Wait(ctx))
			})
		}
		all.Wait()
		for name, s := range l[0].Group().Stats().Policies {
			if s.Tokens.Limited != 0 || len(s.Top) > 0 || s.Waiting.Now != 0 || s.Waiting.GaveUp != 0 || s.Waiting.Admitted < 20 {
				t.Errorf("%s: %+v", name, s)
			}
		}
		noTurns(t, l[0].Group())
		books(t, l[0].Group())
	})
}

// In shadow mode no request waits, and refusals are counted.
func TestNobodyWaitsForAShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(1), Shadow: true}, nil)
		for range 3 {
			ok(t, l.Wait(ctx, "k"))
			ok(t, tiered.All(l.For("k")).Wait(ctx))
		}
		if s := l.Stats(); s.Tokens.Limited != 5 || s.Tokens.Shadowed != 5 || s.Waiting.Admitted != 0 {
			t.Errorf("%+v", s)
		}
	})
}
