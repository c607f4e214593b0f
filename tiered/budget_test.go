package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// frozen is a store that never answers.
func frozen() *distant {
	s := newDistant(0)
	s.loseRequests.Store(true)
	return s
}

// A caller that has a deadline gets its answer before it: the fail mode decides in time if Redis does not answer.
func TestAnswerComesBeforeTheCallersDeadline(t *testing.T) {
	ask := map[string]func(context.Context, *tiered.Limiter) (tiered.Decision, error){
		"Allow": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) { return l.Allow(ctx, "k"), nil },
		"Reserve": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return l.ReserveN(ctx, "k", 2).Decision, nil
		},
		"All": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return tiered.All(l.For("k"), l.For("j")).Allow(ctx), nil
		},
		"AllowSeparately": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			var each [2]tiered.Decision
			tiered.All(l.For("k"), l.For("j")).AllowSeparately(ctx, each[:])
			return each[1], nil
		},
		"AllowAtMost": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			_, d := l.AllowAtMost(ctx, "k", 3)
			return d, nil
		},
		"Peek": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) { return l.Peek(ctx, "k"), nil },
		"Reset": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return tiered.Decision{}, l.Reset(ctx, "k")
		},
		"Refund": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			return tiered.Decision{}, l.Refund(ctx, "k", 1)
		},
		"PeekEach": func(ctx context.Context, l *tiered.Limiter) (tiered.Decision, error) {
			_, err := l.PeekEach(ctx, "k")
			return tiered.Decision{}, err
		},
	}
	for name, f := range ask {
		for _, left := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond} {
			synctest.Test(t, func(t *testing.T) {
				l := must(tiered.New(frozen(), tiered.Policy{
					Name: "p", Limit: tiered.PerSecond(100), FailMode: tiered.FailClosed,
				}, nil))
				ctx, cancel := context.WithTimeout(t.Context(), left)
				defer cancel()
				start := time.Now()
				d, err := f(ctx, l)
				took, late := time.Since(start), ctx.Err() != nil
				switch {
				case late || left-took < min(left/2, 10*time.Millisecond): // an answer takes some time to its caller
					t.Errorf("%s: answered %v after it was asked, with %v left", name, took, left)
				case err == nil && d.Reason != tiered.Unavailable, err != nil && !errors.Is(err, tiered.ErrUnavailable):
					t.Errorf("%s, %v left: %v, %v, want the fail mode to decide", name, left, d.Reason, err)
				}
				_ = l.Close(context.Background())
			})
		}
	}
}

// Who waits for tokens waits until its deadline, whatever Redis does.
func TestWaitEndsWithItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(tiered.New(frozen(), tiered.Policy{
			Name: "p", Limit: tiered.PerSecond(100), FailMode: tiered.FailClosed,
		}, nil))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := l.Wait(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		_ = l.Close(context.Background())
	})
}

// Peek takes no longer than Budget, also if its key is evicted meanwhile.
func TestPeekOfAnEvictedKeyTakesABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, direct("api", 5), &tiered.Options{MaxKeys: 1})
		want(t, l.Allow(t.Context(), "k"), tiered.Granted)
		store.loseRequests.Store(true)
		time.AfterFunc(tiered.DefaultBudget/2, func() { l.Allow(context.Background(), "other") })
		begin := time.Now()
		l.Peek(t.Context(), "k")
		if d := time.Since(begin); d > tiered.DefaultBudget {
			t.Errorf("Peek took %v", d)
		}
		store.loseRequests.Store(false)
	})
}

// Who has time is decided by Redis, also if the call under way is for callers in a hurry and comes too late for them. (Issue 38.)
func TestWhoHasTimeDoesNotGoByCallersInAHurry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(12*ms), tiered.Policy{
			Limit: tiered.PerSecond(1000), Lease: neverLeased, FailMode: tiered.FailClosed,
		}, &tiered.Options{Budget: 100 * ms})
		for range 20 { // the process knows how far Redis is
			time.Sleep(100 * ms)
			l.Allow(t.Context(), "k")
		}
		hurry := func() tiered.Decision {
			ctx, cancel := context.WithTimeout(t.Context(), 8*ms) // it waits for half of that
			defer cancel()
			return l.Allow(ctx, "k")
		}
		for join := ms / 2; join < 24*ms; join += ms { // when the caller comes who has time
			go hurry()
			go func() { time.Sleep(10 * ms); hurry() }() // it still waits when the first call turns out to be late
			time.Sleep(join)
			if d := l.Allow(t.Context(), "k"); d.Reason != tiered.Granted {
				t.Errorf("who came after %v, and waits for 100 ms: %v", join, d.Reason)
			}
			time.Sleep(200 * ms)
		}
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

// Any number of callers that give up do not count as failures of Redis.
func TestCancelingCallersDoNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(10 * ms)
		l := limiter(t, store, tiered.Policy{
			Limit: tiered.PerSecond(1000), Lease: neverLeased,
			FailMode: tiered.FailClosed,
		}, nil)
		var all sync.WaitGroup
		reasons := make(map[tiered.Reason]int)
		var mu sync.Mutex
		for i := range 2000 {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), ms) // a deadline far below ours
			} else if i%4 == 1 {
				time.AfterFunc(ms, cancel)
			}
			all.Go(func() {
				defer cancel()
				d := l.Allow(ctx, fmt.Sprint(i))
				mu.Lock()
				defer mu.Unlock()
				reasons[d.Reason]++
			})
			time.Sleep(ms)
		}
		all.Wait()
		n := l.Group().Stats().Nodes[string(store.Node(""))]
		t.Logf("%v; %+v", reasons, n)
		if reasons[tiered.Canceled] != 500 || reasons[tiered.Unavailable] != 1000 || reasons[tiered.Granted] != 500 {
			t.Errorf("%v, want each second without an answer in time, and each fourth canceled", reasons)
		}
		if n.Calls.Failed > 0 || n.Outages.Breaker != "closed" {
			t.Errorf("%+v", n)
		}
	})
}

func TestBudgetIsForAllTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		var l []*tiered.Limiter
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			p := direct(name, 100)
			p.FailMode = tiered.FailOpen
			l = append(l, several(t, store, nil, p)[0])
		}
		time.Sleep(time.Second)
		store.loseRequests.Store(true)
		var uses []tiered.Use
		for _, l := range l {
			uses = append(uses, l.For("k"))
		}
		start := time.Now()
		d := tiered.All(uses...).Allow(t.Context())
		if took := time.Since(start); took != tiered.DefaultBudget || d.Reason != tiered.Open {
			t.Errorf("%+v after %v, want fail-open's after one Budget", d, took)
		}
	})
}
