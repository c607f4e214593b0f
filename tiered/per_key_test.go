package tiered_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestPerKeyIsAskedOncePerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked sync.Map
		count := func(key string) int64 {
			n, _ := asked.LoadOrStore(key, new(atomic.Int64))
			return n.(*atomic.Int64).Load()
		}
		gold := atomic.Bool{}
		long := strings.Repeat("x", 5000) // has another name in Redis
		p := tiered.Policy{Name: "api", Limit: tiered.PerDay(1).WithBurst(2), PerKey: func(key string) tiered.Limit {
			n, _ := asked.LoadOrStore(key, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
			time.Sleep(10 * ms) // long enough for all to meet here
			switch {
			case key == "gold", key == "ann" && gold.Load(), key == long:
				return tiered.PerDay(1).WithBurst(5)
			case key == "default":
				return tiered.Limit{}
			}
			return tiered.PerDay(1).WithBurst(3)
		}}
		store := newDistant(ms)
		l := several(t, store, &tiered.Options{MaxKeys: 16}, p)[0]
		admitted := func(key string, most int64) {
			t.Helper()
			var n atomic.Int64
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					if d := l.Allow(ctx, key); d.Allowed {
						n.Add(1)
					} else if d.Burst != most {
						t.Errorf("%+v, want the limit %d", d, most)
					}
				})
			}
			all.Wait()
			if n.Load() != most || count(key) != 1 {
				t.Errorf("%d of %q admitted after %d look-ups, want %d after one", n.Load(), key[:1], count(key), most)
			}
		}
		admitted("gold", 5)
		admitted("ann", 3)
		admitted(long, 5)
		admitted("default", 2)

		gold.Store(true)
		want(t, l.Allow(ctx, "ann"), tiered.Limited)
		l.Refresh("ann")
		l.Refresh("ann")
		l.Refresh("nobody")
		l.Refresh("")
		// The level is absolute: a better plan is no gift.
		if d := l.Allow(ctx, "ann"); d.Reason != tiered.Limited || d.Burst != 5 || count("ann") != 2 {
			t.Errorf("%+v after %d look-ups", d, count("ann"))
		}
		if n := l.Peek(ctx, "gold").Burst; n != 5 || count("gold") != 1 {
			t.Errorf("Peek: %d", n)
		}
		if d := l.Peek(ctx, "new"); d.Burst != 3 || count("new") != 1 {
			t.Errorf("Peek of a new key: %+v", d)
		}
		for i := range 100 { // they push the others out
			l.Allow(ctx, fmt.Sprint("flood", i))
		}
		time.Sleep(2 * time.Second)
		if l.Allow(ctx, "gold"); count("gold") != 2 {
			t.Errorf("%d look-ups of a key that was forgotten, want 2", count("gold"))
		}
		set(t, l, func(p *tiered.Policy) { p.Lease.Size = tiered.NoLease })
		if l.Allow(ctx, "gold"); count("gold") != 3 {
			t.Errorf("%d look-ups after SetPolicy, want 3", count("gold"))
		}
		set(t, l, func(p *tiered.Policy) { p.PerKey = nil })
		if d := l.Allow(ctx, "gold"); d.Burst != 2 || count("gold") != 3 {
			t.Errorf("%+v without PerKey", d)
		}
	})
}

// If Refresh or SetPolicy is called while PerKey runs, its result is not kept.
func TestLookUpThatWasOvertakenIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		burst := atomic.Int64{}
		burst.Store(3)
		p := tiered.Policy{Name: "api", Limit: tiered.PerDay(1), PerKey: func(string) tiered.Limit {
			n := burst.Load()
			time.Sleep(10 * ms)
			return tiered.PerDay(1).WithBurst(n)
		}}
		l := several(t, newDistant(ms), nil, p)[0]
		decide := func() (d tiered.Decision) {
			done := make(chan tiered.Decision)
			go func() { done <- l.Allow(ctx, "k") }()
			time.Sleep(5 * ms)
			burst.Add(1)
			if burst.Load() == 4 {
				l.Refresh("k")
			} else {
				set(t, l, func(*tiered.Policy) {})
			}
			return <-done
		}
		if d := decide(); d.Burst != 4 {
			t.Errorf("%+v after Refresh", d)
		}
		l.Refresh("k")
		if d := decide(); d.Burst != 5 {
			t.Errorf("%+v after SetPolicy", d)
		}
	})
}

func TestPerKeyThatFailsMeansThePolicysLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines logged
		p := tiered.Policy{Name: "api", Limit: tiered.PerDay(1).WithBurst(2), PerKey: func(key string) tiered.Limit {
			switch key {
			case "panic", "panic too":
				panic("secret " + key + "\n")
			case "invalid":
				return tiered.Limit{Tokens: -5, Per: time.Second}
			case "exit":
				runtime.Goexit()
			}
			return tiered.PerDay(1).WithBurst(3)
		}}
		l := several(t, newDistant(ms), &tiered.Options{Logger: lines.logger()}, p)[0]
		for _, key := range []string{"panic", "panic too", "invalid"} {
			for range 2 {
				if d := l.Allow(ctx, key); d.Reason != tiered.Granted || d.Burst != 2 {
					t.Fatalf("%q: %+v", key, d)
				}
			}
			want(t, l.Allow(ctx, key), tiered.Limited)
		}
		for range 2 { // a test that fails within PerKey ends its goroutine: others must not wait for it
			done := make(chan struct{})
			go func() { defer close(done); l.Allow(ctx, "exit") }()
			<-done
		}
		if d := l.Allow(ctx, "well"); d.Burst != 3 {
			t.Errorf("%+v", d)
		}
		time.Sleep(2 * time.Second)
		if n := l.Stats().Faults.PerKey; n != 3 {
			t.Errorf("%d faults, want 3", n)
		}
		if log := lines.String(); strings.Count(log, "PerKey gave") != 1 || strings.Count(log, "\n") != 1 ||
			!strings.Contains(log, "policy=api") || strings.Contains(log, "secret") {
			t.Errorf("log: %s", log)
		}
	})
}

// windows are all that counts otherwise than one token bucket.
var windows = []tiered.Policy{
	{Name: "fixed", Algorithm: tiered.FixedWindow, Limit: tiered.PerMinute(10)},
	{Name: "log", Algorithm: tiered.SlidingLog, Limit: tiered.PerMinute(10)},
	{Name: "sliding", Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10)},
	{Name: "direct", Algorithm: tiered.SlidingWindow, Limit: tiered.PerMinute(10), Lease: neverLeased},
	{Name: "buckets", Limit: tiered.PerMinute(10).And(tiered.PerHour(100))},
}

// admitted asks until a request is refused, and reports how many were not.
func admitted(t *testing.T, l *tiered.Limiter, key string) (n int) {
	t.Helper()
	for {
		d := l.Allow(ctx, key)
		if !d.Allowed {
			want(t, d, tiered.Limited)
			return n
		}
		n++
	}
}

// PerKey is not asked for a key that is not valid, also once requests have carried limits.
func TestPerKeyIsNotAskedForInvalidKeys(t *testing.T) {
	for _, key := range []string{"", strings.Repeat("k", 65_537)} {
		bubble(t, fmt.Sprint(len(key), " bytes"), func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(500), PerKey: func(key string) tiered.Limit {
				if key != "user" {
					t.Errorf("asked for a key of %d bytes", len(key))
				}
				return tiered.PerMinute(7)
			}}, nil)
			l.For("user").WithLimit(tiered.PerMinute(10)).Allow(ctx)
			for _, d := range []tiered.Decision{
				l.Allow(ctx, key), l.Reserve(ctx, key).Decision, tiered.All(l.For("user"), l.For(key)).Allow(ctx), l.Peek(ctx, key),
			} {
				want(t, d, tiered.InvalidKey)
			}
		})
	}
}

// PerKey may give a window another limit, Blocked or Unlimited. Another period is invalid if bucket
// names contain it.
func TestPerKeyOfWindows(t *testing.T) {
	for _, p := range windows {
		t.Run(p.Name, func(t *testing.T) {
			further := p.Limit.Each()[1:]
			p.PerKey = func(key string) tiered.Limit {
				return map[string]tiered.Limit{
					"few": tiered.PerMinute(3).And(further...), "any": tiered.Unlimited(), "none": tiered.Blocked(),
					"hour": tiered.PerHour(4), "bad": {Tokens: -1},
				}[key]
			}
			synctest.Test(t, func(t *testing.T) {
				l := several(t, newDistant(ms), nil, p)[0]
				time.Sleep(time.Second)
				hour := 10
				if p.Algorithm == tiered.SlidingWindow {
					hour = 4
				}
				for key, n := range map[string]int{"few": 3, "other": 10, "bad": 10, "hour": hour} {
					if got := admitted(t, l, key); got != n {
						t.Errorf("%s: %d, want %d", key, got, n)
					}
				}
				for range 20 {
					want(t, l.Allow(ctx, "any"), tiered.Granted)
					want(t, l.Allow(ctx, "none"), tiered.ExceedsBurst)
				}
				faults := int64(1)
				if hour == 10 {
					faults = 2
				}
				if n := l.Group().Stats().Policies[p.Name].Faults.PerKey; n != faults {
					t.Errorf("%d faults of PerKey, want %d", n, faults)
				}
			})
		})
	}
}
