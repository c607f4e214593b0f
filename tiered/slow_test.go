package tiered_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// creeping is a store whose round trip can be changed while it runs.
type creeping struct {
	*distant
	way atomic.Int64 // ns, one way
}

func newCreeping(trip time.Duration) *creeping {
	s := &creeping{distant: newDistant(2)} // of 2 ns: tail makes it what is wanted
	s.set(trip)
	s.tail = func() float64 { return float64(s.way.Load()) }
	return s
}

func (s *creeping) set(trip time.Duration) { s.way.Store(int64(trip / 2)) }

// If Redis answers just within Timeout, or a little later, the breaker never opens. If it takes three times as long, the
// breaker opens once, until a late answer has told that there are answers. It does not open for a Redis that was known to
// be as slow.
func TestSlowCallsTrip(t *testing.T) {
	for _, c := range []struct {
		name   string
		trip   func(at time.Duration) time.Duration
		opens  int
		closes int
	}{
		{"just below Timeout", func(time.Duration) time.Duration { return tiered.DefaultTimeout - ms }, 0, 0},
		{"just above Timeout", func(time.Duration) time.Duration { return tiered.DefaultTimeout + ms }, 0, 0},
		{"three times Timeout", func(at time.Duration) time.Duration {
			if at < 20*second {
				return ms
			}
			return 3 * tiered.DefaultTimeout
		}, 1, 1},
		{"creeping up to just below Timeout", func(at time.Duration) time.Duration {
			return min(at/1000+ms, tiered.DefaultTimeout-ms)
		}, 0, 0},
		{"over it for 20 s of 60", func(at time.Duration) time.Duration {
			if at >= 20*second && at < 40*second {
				return tiered.DefaultTimeout + ms
			}
			return tiered.DefaultTimeout - ms
		}, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := newCreeping(c.trip(0))
			var mu sync.Mutex
			opens, closes := 0, 0
			l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)},
				&tiered.Options{Trace: &tiered.Trace{State: func(e tiered.StateEvent) {
					mu.Lock()
					defer mu.Unlock()
					if e.From == "closed" {
						opens++
					}
					if e.To == "closed" {
						closes++
					}
				}}})
			start := time.Now()
			longest := time.Duration(0)
			for i := 0; time.Since(start) < 60*second; i++ {
				store.set(c.trip(time.Since(start)))
				begun := time.Now()
				l.Allow(context.Background(), "hot")
				l.Allow(context.Background(), fmt.Sprint(i))
				longest = max(longest, time.Since(begun))
				time.Sleep(5 * ms)
			}
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%s: opened %d times, closed %d times, longest decision %v", c.name, opens, closes, longest)
			if opens != c.opens || closes != c.closes {
				t.Errorf("%s: opened %d times, closed %d times, want %d and %d", c.name, opens, closes, c.opens,
					c.closes)
			}
			if longest > 2*tiered.DefaultBudget {
				t.Errorf("%s: two decisions took %v", c.name, longest)
			}
			store.set(ms)
		})
	}
}

// While a real Redis is frozen, decisions take no longer than when it is well once the breaker is open; nor do
// those of hot keys while it closes again. Afterwards there are as many goroutines and connections as before.
func TestDecisionsAreFastAroundAnOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("6 s of real time")
	}
	server := redistest.Start(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // after Close
	admin := server.Client()
	connections := func() int {
		info, err := admin.Info(context.Background(), "clients").Result()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		_, rest, _ := strings.Cut(info, "connected_clients:")
		_, _ = fmt.Sscan(rest, &n)
		return n
	}
	connections() // connects
	idle := connections()
	for _, mode := range []tiered.FailMode{tiered.FailLocal, tiered.FailOpen, tiered.FailClosed} {
		if testing.Short() && mode != tiered.FailLocal {
			break
		}
		t.Run(mode.String(), func(t *testing.T) {
			store := open(t, server.URL())
			l, err := tiered.New(store, tiered.Policy{
				Name: fmt.Sprint("api", int(mode)), Limit: tiered.PerSecond(10_000),
				FailMode: mode,
			},
				&tiered.Options{Processes: 1})
			if err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			hot := func() { l.Allow(ctx, "hot") }
			any := 0
			rare := func() { any++; l.Allow(ctx, fmt.Sprint(any)) }
			there, back := make(chan struct{}), make(chan struct{})
			go func() {
				for range there {
					back <- struct{}{}
				}
			}()
			defer close(there)
			// watch makes decisions for a time, and reports the 99th percentile of how long they took, and of how
			// long it took on this machine meanwhile to wake another goroutine and be woken by it.
			watch := func(while func() bool, decide func()) (p99, lag time.Duration, n int) {
				var took, none []time.Duration
				for while() {
					begun := time.Now()
					decide()
					took = append(took, time.Since(begun))
					begun = time.Now()
					there <- struct{}{}
					<-back
					none = append(none, time.Since(begun))
					time.Sleep(100 * time.Microsecond)
				}
				slices.Sort(took)
				slices.Sort(none)
				return took[len(took)*99/100], none[len(none)*99/100], len(took)
			}
			last := func(d time.Duration) func() bool {
				end := time.Now().Add(d)
				return func() bool { return time.Now().Before(end) }
			}
			check := func(when string, p99, lag time.Duration, n int) {
				t.Logf("%-32s p99 of %d decisions %v, of waking %v", when, n, p99, lag)
				if p99 >= ms+lag {
					t.Errorf("%s: p99 %v, want less than 1 ms", when, p99)
				}
			}
			watch(last(300*ms), hot)
			var crowd sync.WaitGroup // so that there are as many senders and connections as there can be
			for c := range 16 {
				crowd.Go(func() {
					for i := range 100 {
						l.Allow(ctx, fmt.Sprint("crowd ", c, i))
					}
				})
			}
			crowd.Wait()
			watch(last(300*ms), rare)
			goroutines, connected := runtime.NumGoroutine(), connections()
			guard := tiered.Dispatch(l.Group()).Nodes()[0]

			server.Pause()
			for guard.State() == failover.Closed {
				rare()
			}
			p99, lag, n := watch(last(1500*ms), hot)
			check("open, a hot key", p99, lag, n)
			p99, lag, n = watch(last(1500*ms), rare)
			check("open, unknown keys", p99, lag, n)
			server.Resume()
			heals := time.Now()
			closed := time.Time{}
			p99, lag, n = watch(func() bool {
				if closed.IsZero() && guard.State() == failover.Closed {
					closed = time.Now()
				}
				return time.Since(heals) < 2*second
			}, hot)
			check(fmt.Sprintf("it closes after %v, a hot key", closed.Sub(heals).Round(ms)), p99, lag, n)
			if closed.IsZero() {
				t.Error("it did not close")
			}
			after := soon(t, fmt.Sprintf("%d goroutines and %d connections, as before", goroutines, connected),
				10*second, func() bool {
					return runtime.NumGoroutine() <= goroutines && connections() <= connected
				})
			t.Logf("%d goroutines and %d connections before, no more %v later", goroutines, connected, after)
			closeIn(t, l, 5*second)
			_ = store.Close()
			soon(t, "its connections are closed", 5*second, func() bool { return connections() == idle })
		})
	}
}
