package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// besides is how often others ask for one token while somebody waits.
const besides = 7 * time.Millisecond

// Who waits for many tokens gets them when x/time/rate would give them to him, though others of the
// process take one or two at a time without waiting.
func TestWaitForManyBesideAllow(t *testing.T) {
	for name, p := range map[string]tiered.Policy{
		"token bucket":        {Limit: tiered.PerSecond(20)},
		"small leases":        {Limit: tiered.PerSecond(20), Lease: tiered.Lease{Size: 5}},
		"leases":              {Limit: tiered.PerSecond(100)},
		"slow":                {Limit: tiered.PerMinute(20)},
		"several limits":      {Limit: tiered.PerSecond(20).And(tiered.PerHour(1000))},
		"fixed window":        {Limit: tiered.PerSecond(20), Algorithm: tiered.FixedWindow},
		"sliding window":      {Limit: tiered.PerSecond(20), Algorithm: tiered.SlidingWindow},
		"sliding log":         {Limit: tiered.PerSecond(20), Algorithm: tiered.SlidingLog},
		"two in the queue":    {Limit: tiered.PerSecond(20)},
		"standing and shared": {Limit: tiered.PerSecond(200), Standing: 1.0 / 8},
	} {
		bubble(t, name, func(t *testing.T) {
			p.Name = "p"
			l := limiter(t, remote.NewMemory(), p, nil)
			ctx, stop := context.WithCancel(ctx)
			defer stop() // so that a test that fails leaves no waiter behind
			for range 2 * p.Limit.Tokens {
				l.Allow(ctx, "k")
			}
			waiters, n, every := 1, int64(15), besides
			switch name {
			case "two in the queue":
				waiters = 2
			case "leases": // some tokens are held when the wait begins
				n, every = 75, 3*time.Millisecond
				for time.Now().Nanosecond() < 900e6 || !l.Allow(ctx, "k").Allowed {
					time.Sleep(every)
					l.Allow(ctx, "k")
				}
			}
			start, done := time.Now(), make(chan error, waiters)
			for range waiters {
				go func() { done <- l.WaitN(ctx, "k", n) }()
			}
			most := 2 * time.Duration(waiters) * p.Limit.Per // twice the time of a burst, because of windows and leases
			for taken, served, asked := 0, 0, int64(0); served < waiters; asked++ {
				select {
				case err := <-done:
					if served++; err != nil {
						t.Fatal(err)
					}
					t.Logf("served after %v, Allow got %d", time.Since(start), taken)
				case <-time.After(every):
					if l.AllowN(ctx, "k", 1+asked%2).Allowed {
						taken++
					}
					if time.Since(start) > most || taken > 0 {
						t.Fatalf("WaitN(%d) got nothing in %v, and others got %d", n, time.Since(start), taken)
					}
				}
			}
			admitted := false
			for range most / besides { // it keeps nothing from the others then
				time.Sleep(besides)
				admitted = admitted || l.Allow(ctx, "k").Allowed
			}
			if !admitted {
				t.Error("nothing is admitted after the wait")
			}
		})
	}
}

// Allow does not overtake those who wait: the next token goes to the first of them. What Allow is
// told holds: it is admitted when it comes back then, and Peek says the same.
func TestAllowIsBehindThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Name: "p", Limit: tiered.PerSecond(10)}, nil)
		l.AllowN(ctx, "k", 10)
		start, served := time.Now(), make(chan time.Duration, 5)
		for range cap(served) {
			go func() {
				ok(t, l.Wait(ctx, "k"))
				served <- time.Since(start)
			}()
		}
		synctest.Wait()
		var back time.Time
		for range 70 { // until they are served
			time.Sleep(besides)
			peeked, d := l.Peek(ctx, "k"), l.Allow(ctx, "k")
			more := peeked.RetryAfter - d.RetryAfter // the part of a token, which Redis does not tell
			if peeked.Allowed != d.Allowed || more < 0 || more > 100*time.Millisecond {
				t.Errorf("after %v Peek says %v, retry after %v, and Allow %v, %v", time.Since(start), peeked.Reason, peeked.RetryAfter,
					d.Reason, d.RetryAfter)
			}
			if d.Allowed {
				t.Fatalf("Allow was admitted after %v, before those who wait", time.Since(start))
			}
			back = time.Now().Add(d.RetryAfter)
		}
		time.Sleep(time.Until(back))
		if d := l.Allow(ctx, "k"); !d.Allowed {
			t.Errorf("it came back when it was told, after %v, and was refused: retry after %v", time.Since(start), d.RetryAfter)
		}
		for i := range cap(served) {
			if at := <-served; at > time.Duration(i+1)*100*time.Millisecond+10*time.Millisecond {
				t.Errorf("number %d was served after %v", i+1, at)
			}
		}
	})
}

// While other processes take all tokens, who waits for many is not served, and the others of his
// process still get half of what they would.
func TestWaitThatOthersStarve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := remote.NewMemory()
		var both [2]*tiered.Limiter
		for i := range both {
			l := limiter(t, store, tiered.Policy{Name: "p", Limit: tiered.PerSecond(20)}, nil)
			both[i] = l
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error, 1)
		both[0].AllowN(ctx, "k", 20)
		go func() { done <- both[0].WaitN(ctx, "k", 15) }()
		var taken [2]int
		for range 60 * time.Second / besides {
			for i, l := range both {
				time.Sleep(besides/2 + time.Duration(i)*time.Millisecond)
				if l.Allow(t.Context(), "k").Allowed {
					taken[i]++
				}
			}
		}
		t.Logf("taken: %d beside the one who waits, %d by the other process; he got: %v", taken[0], taken[1], <-done)
		if taken[0] < 150 {
			t.Errorf("%d admitted in a minute beside one who waits in vain", taken[0])
		}
	})
}

// Callers who wait for a key are served in time with standing shares as without: the estimate for
// those behind the first knows that the share has an eighth of the rate.
func TestWaitersBesideStandingShares(t *testing.T) {
	for _, standing := range []float64{0, 1.0 / 8} {
		bubble(t, fmt.Sprint(standing), func(t *testing.T) {
			l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(800), Standing: standing}, nil)
			time.Sleep(5 * time.Minute)
			for l.Allow(t.Context(), "user").Allowed {
			}
			var served, late atomic.Int64
			var all sync.WaitGroup
			for range 750 + 100 { // 800 tokens come in a minute: the last callers are too many
				all.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					defer cancel()
					var e *tiered.LimitedError
					switch err := l.Wait(ctx, "user"); {
					case err == nil:
						served.Add(1)
					case errors.As(err, &e):
						late.Add(1)
					}
				})
				time.Sleep(time.Millisecond)
			}
			all.Wait()
			if served.Load() < 790 || late.Load() < 30 {
				t.Errorf("%d of 850 served, %d refused before their time was over", served.Load(), late.Load())
			}
		})
	}
}
