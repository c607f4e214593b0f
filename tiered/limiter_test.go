package tiered_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

func TestAllowUpToTheBurstThenAtTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerSecond(10).WithBurst(5)}, nil)
		for i := range 5 {
			d := l.Allow(ctx, "k")
			want(t, d, tiered.Granted)
			if d.Burst != 5 || d.Remaining != int64(4-i) || d.Policy != "api" || d.Key != "k" {
				t.Fatalf("decision %d: %+v", i, d)
			}
		}
		d := l.Allow(ctx, "k")
		want(t, d, tiered.Limited)
		// A token comes in 100 ms; after a lease call the hold-off of up to 1.25 T = 156 ms counts.
		if d.RetryAfter <= 0 || d.RetryAfter > 157*ms {
			t.Fatalf("retry after %v, want up to 157ms", d.RetryAfter)
		}
		if err := d.Err(); !errors.Is(err, tiered.ErrLimited) || strings.Contains(err.Error(), "\"k\"") {
			t.Fatalf("err %v", err)
		}
		time.Sleep(d.RetryAfter + 10*ms)
		want(t, l.Allow(ctx, "k"), tiered.Granted)
		want(t, l.Allow(ctx, "other"), tiered.Granted)
	})
}

func TestRedisDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		store.Fail(io.EOF)
		// starts while Redis is down
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10), FailMode: tiered.FailClosed}, nil)
		d := l.Allow(context.Background(), "k")
		want(t, d, tiered.Unavailable)
		if d.Tier != tiered.Failover || !errors.Is(d.Err(), tiered.ErrUnavailable) {
			t.Fatalf("%+v", d)
		}
		want(t, l.Allow(context.Background(), "k"), tiered.Unavailable)
		store.Fail(nil)
		time.Sleep(time.Second)
		want(t, l.Allow(context.Background(), "k"), tiered.Granted)
	})
}

// The Decision of a request whose context ended has the context's own error: canceled or deadline exceeded.
func TestContextThatEnds(t *testing.T) {
	because := errors.New("nobody is there any more")
	for name, c := range map[string]struct {
		ctx   func(context.Context) (context.Context, context.CancelFunc)
		is    error
		other error
	}{
		"expired": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, -1)
		}, context.DeadlineExceeded, context.Canceled},
		"expired, for a reason": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, -1, because)
		}, context.DeadlineExceeded, context.Canceled},
		"canceled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(ms, cancel)
			return ctx, cancel
		}, context.Canceled, context.DeadlineExceeded},
		"canceled before a deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithTimeout(ctx, second)
			time.AfterFunc(ms, cancel)
			return ctx, cancel
		}, context.Canceled, context.DeadlineExceeded},
	} {
		for what, ask := range map[string]func(context.Context, *tiered.Limiter) tiered.Decision{
			"Allow": func(ctx context.Context, l *tiered.Limiter) tiered.Decision { return l.Allow(ctx, "k") },
			"Reserve": func(ctx context.Context, l *tiered.Limiter) tiered.Decision {
				return l.ReserveN(ctx, "k", 2).Decision
			},
			"All": func(ctx context.Context, l *tiered.Limiter) tiered.Decision {
				return tiered.All(l.For("k"), l.For("j")).Allow(ctx)
			},
			"Peek": func(ctx context.Context, l *tiered.Limiter) tiered.Decision { return l.Peek(ctx, "k") },
		} {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, newDistant(10*ms), direct("api", 10), nil)
				time.Sleep(second)
				ctx, cancel := c.ctx(t.Context())
				defer cancel()
				d := ask(ctx, l)
				err := d.Err()
				var refused *tiered.LimitedError
				if d.Reason != tiered.Canceled || !errors.Is(err, c.is) || errors.Is(err, c.other) ||
					!errors.As(err, &refused) {
					t.Errorf("%s, %s: %+v: %v, want %v", name, what, d, err, c.is)
				}
			})
		}
	}
}

// warm spends n tokens of key, one per millisecond.
func warm(t *testing.T, l *tiered.Limiter, key string, n int) {
	t.Helper()
	warmEach(t, l, key, n, ms)
}

// warmEach is warm with another time between the requests.
func warmEach(t *testing.T, l *tiered.Limiter, key string, n int, step time.Duration) {
	t.Helper()
	for range n {
		want(t, l.Allow(context.Background(), key), tiered.Granted)
		time.Sleep(step)
	}
}

func TestCloseReturnsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerHour(1000), FailMode: tiered.FailClosed},
			nil))
		warm(t, l, "k", 100)
		held := l.Stats().Leases.Held
		if held == 0 {
			t.Fatal("nothing is leased: this shows nothing")
		}
		closeIn(t, l, time.Second)
		want(t, l.Allow(context.Background(), "k"), tiered.Unavailable)
		if err := l.Reset(context.Background(), "k"); !errors.Is(err, tiered.ErrUnavailable) {
			t.Errorf("Reset after Close: %v", err)
		}
		want(t, l.Peek(context.Background(), "k"), tiered.Unavailable)
		if _, err := l.Group().NewLimiter(tiered.Policy{Name: "late", Limit: tiered.PerSecond(1)}); err == nil {
			t.Error("a closed Group took another policy")
		}
		other := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(1000)}, nil)
		if d := other.Peek(context.Background(), "k"); d.Remaining < 898 || d.Remaining > 901 {
			t.Errorf("%d left after Close, want 900: %d were held", d.Remaining, held)
		}
		closeIn(t, l, time.Second) // again
	})
}

func TestPeekTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10)}, nil)
		for range 3 {
			d := l.Peek(ctx, "k")
			want(t, d, tiered.Granted)
			if d.Remaining != 10 || d.Tier != tiered.Remote {
				t.Fatalf("%+v", d)
			}
		}
		l.AllowN(ctx, "k", 10)
		if d := l.Peek(ctx, "k"); d.Reason != tiered.Limited || d.Remaining != 0 || d.RetryAfter <= 5*time.Minute ||
			d.RetryAfter > 6*time.Minute {
			t.Fatalf("%+v, want refused for up to 6 minutes", d)
		}
		store.loseRequests.Store(true)
		start := time.Now()
		d := l.Peek(ctx, "k")
		if d.Reason != tiered.FallbackSpent || d.Remaining != 0 || time.Since(start) != tiered.DefaultBudget {
			t.Fatalf("%+v after %v, want what the fail mode says, after the budget", d, time.Since(start))
		}
		if d := l.Peek(ctx, "unknown"); d.Reason != tiered.Fallback {
			t.Fatalf("%+v, want the share's", d)
		}
		store.loseRequests.Store(false)
	})
}

func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10)}, nil)
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		want(t, l.Allow(ctx, "k"), tiered.Limited)
		ok(t, l.Reset(ctx, "k"))
		want(t, l.AllowN(ctx, "k", 10), tiered.Granted)
		ok(t, l.Reset(ctx, "never seen"))
		store.loseReplies.Store(true)
		if err := l.Reset(ctx, "k"); !errors.Is(err, tiered.ErrUnavailable) {
			t.Fatalf("a reset without an answer: %v", err)
		}
		store.loseReplies.Store(false)
		for _, key := range []string{"", strings.Repeat("x", tiered.MaxKeyLength+1)} {
			if err := l.Reset(ctx, key); !errors.Is(err, tiered.ErrInvalid) {
				t.Errorf("Reset of a key of %d bytes: %v", len(key), err)
			}
		}
	})
}

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

func TestBadCallsAreAnsweredAndNothingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(10)}, nil)
		time.Sleep(10 * ms)
		for _, c := range []struct {
			key  string
			n    int64
			want tiered.Reason
			is   error
		}{
			{"", 1, tiered.InvalidKey, tiered.ErrInvalid},
			{strings.Repeat("k", tiered.MaxKeyLength+1), 1, tiered.InvalidKey, tiered.ErrInvalid},
			{"k", 0, tiered.InvalidCost, tiered.ErrInvalid},
			{"k", -1, tiered.InvalidCost, tiered.ErrInvalid},
			{"k", -1 << 63, tiered.InvalidCost, tiered.ErrInvalid},
			{"k", 11, tiered.ExceedsBurst, tiered.ErrExceedsBurst},
			{"k", 1<<63 - 1, tiered.ExceedsBurst, tiered.ErrExceedsBurst},
		} {
			d := l.AllowN(ctx, c.key, c.n)
			if d.Reason != c.want || d.Allowed || !errors.Is(d.Err(), c.is) || d.RetryAfter != 0 {
				t.Errorf("key of %d bytes, cost %d: %+v", len(c.key), c.n, d)
			}
		}
		if n := store.calls.Load(); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
		long := strings.Repeat("k", tiered.MaxKeyLength)
		for _, key := range []string{
			long, "}{", "{}", "a{b}c", "\x00\xff\xfe", "\n\r\t ", "ключ",
			strings.Repeat("\x00", 201),
		} {
			want(t, l.Allow(ctx, key), tiered.Granted)
			if d := l.Allow(ctx, key); d.Remaining != 8 || d.Key != key {
				t.Errorf("a key of %d bytes is not a bucket of its own: %+v", len(key), d.Remaining)
			}
		}
		//lint:ignore SA1012 a nil context is bad input, and gets an answer
		want(t, l.Allow(nil, "nil context"), tiered.Granted) //nolint:staticcheck // see above
	})
}

// While a call is under way, no method of a Group waits for it. Stats takes every lock of a Group. If a lock were held
// across the call, the bubble's time would stop and the test would not end.
func TestNoLockIsHeldAcrossTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(40 * ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100_000)}, &tiered.Options{Budget: time.Second})
		warm(t, l, "leased", 200)
		var all sync.WaitGroup
		all.Go(func() { want(t, l.Allow(ctx, "cold"), tiered.Granted) })
		time.Sleep(ms) // the call is under way
		start := time.Now()
		if d := l.Allow(ctx, "leased"); d.Tier != tiered.Local {
			t.Fatalf("%+v", d)
		}
		l.Group().Stats()
		if _, err := l.Group().NewLimiter(tiered.Policy{Name: "another", Limit: tiered.PerSecond(1)}); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v for another goroutine's call", d)
		}
		all.Wait()
	})
}

func TestStandstillGivesUpTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10_000)}, nil)
		warm(t, l, "k", 300)
		if l.Stats().Leases.Held == 0 {
			t.Fatal("nothing is leased: this shows nothing")
		}
		before := *tiered.Engine(l.Group()).Lease.Load()
		tiered.Engine(l.Group()).StandStill(time.Second) // as if the wall clock had gone on for a second without us
		tiered.Engine(l.Group()).WatchClock(tiered.Engine(l.Group()).Now())
		if *tiered.Engine(l.Group()).Lease.Load() == before {
			t.Error("the lease id is that of before: a copy of this machine may be using it too")
		}
		if d := l.Allow(context.Background(), "k"); !d.Allowed || d.Tier != tiered.Remote {
			t.Fatalf("%+v, want Redis to be asked: the lease may be over", d)
		}
		time.Sleep(10 * ms)
		warm(t, l, "k", 10)
		books(t, l.Group())
	})
}
