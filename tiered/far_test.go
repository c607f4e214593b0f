package tiered_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// far returns a client of a Redis that is as far as the faults say.
func far(t *testing.T, f faultnet.Faults) (*redis.Client, *faultnet.Net) {
	t.Helper()
	distance := faultnet.New(1)
	if err := distance.Set(f); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(redistest.Start(t).Options(redis.Options{
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		Dialer: distance.Dialer((&net.Dialer{}).DialContext),
	}))
	t.Cleanup(func() { _ = client.Close() })
	return client, distance
}

// However far a real Redis is, a process gets ready, and what it admits is what there is, but for what is lost with a call
// or a lease while the machine runs something else. One that becomes slow and fast again is no outage of more than a second. (In virtual time: TestLateRedisIsNoOutage.)
func TestFarRedisIsNoOutage(t *testing.T) {
	for _, c := range []struct {
		delay, jitter, later time.Duration // each way; later is the delay from 3 to 6 s
	}{
		{delay: 6 * time.Millisecond},
		{delay: 15 * time.Millisecond},
		{delay: 30 * time.Millisecond},
		{delay: 60 * time.Millisecond},
		{delay: 125 * time.Millisecond},
		{delay: 10 * time.Millisecond, jitter: 40 * time.Millisecond},
		{delay: time.Millisecond, later: 60 * time.Millisecond},
	} {
		if testing.Short() && c.delay != 60*time.Millisecond {
			continue // real time
		}
		t.Run(fmt.Sprint(c.delay, " ", c.jitter, " ", c.later), func(t *testing.T) {
			client, distance := far(t, faultnet.Faults{Delay: c.delay, Jitter: c.jitter})
			var mu sync.Mutex
			var states []string
			limiter, err := tiered.New(watch.Over(t, remote.NewRedis(client, nil)),
				tiered.Policy{Name: "far", Limit: tiered.Limit{Tokens: 300, Per: 365 * 24 * time.Hour}}, &tiered.Options{
					Processes: 3, Trace: &tiered.Trace{State: func(e tiered.StateEvent) {
						mu.Lock()
						defer mu.Unlock()
						states = append(states, e.To)
					}},
				})
			if err != nil {
				t.Fatal(err)
			}
			defer limiter.Close(context.Background())
			start, admitted := time.Now(), int64(0)
			lost := func() int64 {
				s := limiter.Group().Stats().Policies["far"]
				return s.Burnt + s.Lost
			}
			for limiter.Group().Ping(t.Context()) != nil {
				if time.Since(start) > 20*time.Second {
					t.Fatal("not ready after 20 s")
				}
			}
			ready, slow := time.Since(start), c.later > 0
			var begun time.Time
			for begun = time.Now(); time.Since(begun) < 40*time.Second && (admitted+lost() < 300 || slow); {
				if in := time.Since(begun); c.later > 0 {
					now := faultnet.Faults{Delay: c.delay}
					if slow = in < 7*time.Second; in > 3*time.Second && in < 6*time.Second {
						now.Delay = c.later
					}
					if err := distance.Set(now); err != nil {
						t.Fatal(err)
					}
				}
				if limiter.Allow(t.Context(), "k").Allowed {
					admitted++
				}
				time.Sleep(5 * time.Millisecond)
			}
			took := time.Since(begun)
			for range 100 {
				if limiter.Allow(t.Context(), "k").Allowed {
					admitted++
				}
				time.Sleep(time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%v each way: ready after %v, %d admitted after %v, %d lost, states %v", c.delay, ready, admitted, took, lost(),
				states)
			if admitted+lost() < 300 || admitted > 310 {
				t.Errorf("%d admitted of 300", admitted)
			}
			if state := limiter.Group().Stats().Nodes; len(states) > 8 {
				t.Errorf("the breaker changed too often: %v, %+v", states, state)
			}
		})
	}
}

// Far from Redis a new connection takes longer than Timeout: four round trips of 20 ms, with a Timeout of 50 ms.
// The first calls fail, and later ones use the connections that the first calls have made.
func TestFarFromRedis(t *testing.T) {
	client, _ := far(t, faultnet.Faults{Delay: 10 * time.Millisecond})
	limiter, err := tiered.New(watch.Over(t, remote.NewRedis(client, nil)),
		tiered.Policy{Name: "far", Limit: tiered.PerSecond(1e6)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer limiter.Close(t.Context())
	var d tiered.Decision
	granted := 0 // in a row
	for end := time.Now().Add(10 * time.Second); granted < 500 && time.Now().Before(end); {
		if d = limiter.Allow(t.Context(), "k"); d.Reason == tiered.Granted {
			granted++
		} else {
			granted = 0
		}
		time.Sleep(time.Millisecond)
	}
	if granted < 500 {
		t.Errorf("the last Decision is %+v, want Redis to decide", d)
	}
}
