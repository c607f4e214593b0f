package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(1000)},
				&tiered.Options{Trace: &tiered.Trace{State: func(e tiered.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.From == "closed" {
						opens++
					}
					if e.What == "closed" {
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
				t.Errorf("%s: opened %d times, closed %d times, want %d and %d", c.name, opens, closes, c.opens, c.closes)
			}
			if longest > 2*tiered.DefaultBudget {
				t.Errorf("%s: two decisions took %v", c.name, longest)
			}
			store.set(ms)
		})
	}
}
