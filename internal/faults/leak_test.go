package faults

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestBreakerLeavesNoGoroutines: whatever an outage left under way ends, also when Close comes in the middle of it.
func TestBreakerLeavesNoGoroutines(t *testing.T) {
	for name, fault := range map[string]func(*redistest.Server){
		"killed": (*redistest.Server).Kill, "frozen": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			before := goleak.IgnoreCurrent()
			var groups []*tiered.Group
			var clients []*redis.Client
			var loads sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
				client := redis.NewClient(&redis.Options{Addr: server.Addr})
				g, err := tiered.NewGroup(remote.NewRedis(client, nil), &tiered.Options{Processes: 3})
				if err != nil {
					t.Fatal(err)
				}
				l, err := g.NewLimiter(tiered.Policy{Name: "api", Limit: limit, FailMode: mode})
				if err != nil {
					t.Fatal(err)
				}
				groups, clients = append(groups, g), append(clients, client)
				for i := range 4 {
					loads.Go(func() {
						for n := 0; ctx.Err() == nil; n++ {
							l.Allow(context.Background(), "hot")
							l.Allow(context.Background(), strconv.Itoa(4*n+i)) // a key that nobody has seen: it holds nothing
							time.Sleep(5 * time.Millisecond)
						}
					})
				}
			}
			time.Sleep(300 * time.Millisecond)
			fault(server)
			time.Sleep(1200 * time.Millisecond) // long enough for probes, too short for the end of the leases
			for i, g := range groups {
				for node, s := range g.Stats().Nodes {
					if s.Breaker == "closed" {
						t.Errorf("%v: the breaker of %s is closed", tiered.FailMode(i), node)
					}
				}
			}
			stop()
			loads.Wait()

			const patience = 2 * time.Second
			var closing sync.WaitGroup
			for i, g := range groups {
				closing.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					begin := time.Now()
					err := g.Close(ctx)
					took := time.Since(begin)
					t.Logf("%v: Close took %v: %v", tiered.FailMode(i), took, err)
					if took > patience+250*time.Millisecond { // a stalled machine's share of it
						t.Errorf("%v: Close took %v", tiered.FailMode(i), took)
					}
				})
			}
			closing.Wait()
			for _, c := range clients {
				_ = c.Close()
			}
			begin := time.Now()
			for {
				err := goleak.Find(before)
				if err == nil {
					break
				}
				// A connection that go-redis was dialing when it was closed lives for its DialTimeout of 5 s.
				if time.Since(begin) > 6*time.Second {
					t.Fatal(err)
				}
			}
			t.Logf("all goroutines have ended after %v", time.Since(begin))
		})
	}
}
