package tiered_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A Redis that answers late is a Redis that answers: a process gets ready, its leases come in the background, and three
// hundred tokens are three hundred, however far Redis is. The breaker stays closed, or closes again within a second. A
// frozen Redis is then found by three calls that take twice a round trip.
func TestLateRedisIsNoOutage(t *testing.T) {
	steady := func(d time.Duration) func(time.Duration) time.Duration {
		return func(time.Duration) time.Duration { return d }
	}
	for _, c := range []struct {
		name  string
		trip  func(at time.Duration) time.Duration
		found time.Duration // within which a frozen Redis is found
	}{
		{"12 ms", steady(12 * ms), 200 * ms},
		{"30 ms", steady(30 * ms), 200 * ms},
		{"60 ms", steady(60 * ms), 400 * ms},
		{"120 ms", steady(120 * ms), 750 * ms},
		{"250 ms", steady(250 * ms), 1600 * ms},
		{"20 to 100 ms", func(at time.Duration) time.Duration {
			return 20*ms + time.Duration(rand.New(rand.NewPCG(1, uint64(at))).IntN(int(80*ms)))
		}, 700 * ms},
		{"slow from 3 to 6 s, and fast again", func(at time.Duration) time.Duration {
			if at > 3*second && at < 6*second {
				return 120 * ms
			}
			return ms
		}, 200 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newCreeping(c.trip(0))
				var log bytes.Buffer
				var mu sync.Mutex
				var changes []string
				l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerHour(300).WithBurst(300)},
					&tiered.Options{
						Processes: 3, Logger: slog.New(slog.NewTextHandler(&log, nil)),
						Trace: &tiered.Trace{State: func(e tiered.StateEvent) {
							mu.Lock()
							defer mu.Unlock()
							changes = append(changes, e.To)
						}},
					})
				start := time.Now()
				for ready := false; !ready; ready = l.Group().Ping(t.Context()) == nil {
					if time.Since(start) > 3*second {
						t.Fatal("not ready after 3 s")
					}
				}
				ready := time.Since(start)
				admitted, longest := 0, time.Duration(0)
				for time.Since(start) < 20*second {
					store.set(c.trip(time.Since(start)))
					begun := time.Now()
					if l.Allow(t.Context(), "k").Allowed {
						admitted++
					}
					longest = max(longest, time.Since(begun))
					time.Sleep(10 * ms)
				}
				node := tiered.Dispatch(l.Group()).Nodes()[0]
				if node.State() != failover.Closed {
					t.Errorf("the breaker is %v", node.State())
				}
				mu.Lock()
				before := len(changes)
				mu.Unlock()
				store.loseRequests.Store(true)
				frozen := time.Now()
				for i := 0; node.State() == failover.Closed && time.Since(frozen) < 10*second; i++ {
					l.Allow(t.Context(), "cold"+string(rune('a'+i%26)))
					time.Sleep(ms)
				}
				found := time.Since(frozen)
				t.Logf("%s: ready after %v, %d admitted, longest %v, %d changes of the breaker; frozen, it opened after %v",
					c.name, ready, admitted, longest, before, found)
				if admitted < 298 || admitted > 302 {
					t.Errorf("%d admitted of 300", admitted)
				}
				if longest > tiered.DefaultBudget {
					t.Errorf("a decision took %v", longest)
				}
				if before > 4 {
					t.Errorf("the breaker changed %d times: %v", before, changes)
				}
				if found > c.found {
					t.Errorf("a frozen Redis was found after %v", found)
				}
				store.set(ms)           // it will be near, which the trips of before the outage do not say
				time.Sleep(11 * second) // longer than it is watched whether the node is still far
				store.loseRequests.Store(false)
				time.Sleep(5 * second)
				synctest.Wait() // for what is being logged
				if c.trip(0) > tiered.DefaultBudget && strings.Count(log.String(), "raise Budget") != 1 {
					t.Errorf("want one line that tells of it: %s", log.String())
				}
			})
		})
	}
}

// What was slow and is fast again is not waited for any longer than before: three answers later Timeout is what it was.
func TestTimeoutFollowsRoundTripsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newCreeping(200 * ms)
		l := limiter(t, store, direct("api", 1e6), nil)
		node := tiered.Dispatch(l.Group()).Nodes()[0]
		for range 100 {
			l.Allow(context.Background(), "k")
			time.Sleep(100 * ms)
		}
		if got := node.Timeout(); got != 400*ms {
			t.Errorf("at 200 ms a call has failed after %v", got)
		}
		store.set(ms)
		time.Sleep(second)
		for range 4 {
			l.Allow(context.Background(), "k")
		}
		if got := node.Timeout(); got != tiered.DefaultTimeout {
			t.Errorf("fast again, a call has failed after %v", got)
		}
	})
}
