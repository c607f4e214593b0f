package tiered

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// A key loses its limit while its tokens are out. What comes back then goes by the numbers that the key had: no call leaves
// with others, the store counts what was used, and a process that limits the key all the time sees nothing else.
func TestWhatComesBackToAKeyWithoutALimit(t *testing.T) {
	for _, kind := range []struct {
		name string
		p    Policy
	}{
		{"token bucket", Policy{Limit: PerDay(50)}},
		{"token bucket, direct", Policy{Limit: PerDay(50), Lease: Lease{Size: NoLease}}},
		{"token bucket, large", Policy{Limit: PerDay(10_000)}},
		{"token bucket, shards", Policy{Limit: PerDay(200), Shards: 4}},
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
			for rule, to := range map[string]Limit{"unlimited": Unlimited, "blocked": Blocked} {
				for _, perKey := range []bool{true, false} {
					if !perKey && (kind.p.Algorithm == FixedWindow || kind.p.Algorithm == SlidingLog) {
						continue // of these PerKey alone may return such a rule
					}
					for _, when := range []string{"at once", "after a lease's life", "evicted"} {
						if when == "evicted" && back.used <= 10 {
							continue
						}
						t.Run(fmt.Sprint(kind.name, "/", back.name, "/", rule, "/PerKey ", perKey, "/", when), func(t *testing.T) {
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
	real := map[remote.Limit]bool{}
	for _, s := range watch.parts() {
		c := call("", s.terms.Load().fresh)
		real[remote.Limit{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}] = true
	}

	time.Sleep(time.Hour)
	want(t, l.AllowN(ctx, "k", 10), Granted)
	time.Sleep(10 * second)
	r := l.Reserve(ctx, "k", 10)
	want(t, r.Decision, Granted)
	change(to)
	if d := l.Allow(ctx, "k"); d.Allowed != (to == Unlimited) || d.Tier != Local {
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
		for _, s := range l.parts() {
			if _, ok := l.group.cache.Find(s.id("k")); ok {
				t.Fatal("not evicted")
			}
		}
	}
	back(r)
	time.Sleep(2 * second)
	for _, c := range store.since(time.Time{}) {
		if n := (remote.Limit{Cap: c.Cap, Tokens: c.Tokens, Period: c.Period, Span: c.Span}); c.Cap != 1000 && !real[n] {
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
