package tiered_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestExactShards is the promise for a key in shards: eight processes share it through a real Redis, and through a real Cluster
// whose nodes have some of the shards each, under three times its limit. One is killed and another one stopped on the way. No
// interval admits more than the limit allows over all shards, and most of what one bucket admits is admitted.
func TestExactShards(t *testing.T) {
	if testing.Short() {
		t.Skip("20 s of real time")
	}
	t.Run("one Redis", func(t *testing.T) {
		server := redistest.Start(t)
		exactShards(t, server.URL(), server.Client())
	})
	t.Run("a Cluster", func(t *testing.T) {
		c := redistest.StartCluster(t, 3)
		exactShards(t, "cluster://"+c.Servers[0].Addr, c.Client(0), c.Client(1), c.Client(2))
	})
}

func exactShards(t *testing.T, url string, nodes ...*redis.Client) {
	const processes, shards, window = 8, 4, 2 * time.Second
	loads := []fleet.Load{
		{Policy: "leased", Limit: tiered.PerSecond(1000).WithBurst(402)},
		{Policy: "direct", Limit: tiered.PerSecond(200).WithBurst(42), Size: tiered.NoLease},
		{Policy: "buckets", Limit: tiered.PerSecond(200).WithBurst(50), Also: []tiered.Limit{tiered.Limit{Tokens: 300, Per: window}.WithBurst(300)}},
		{Policy: "sliding", Algorithm: tiered.SlidingWindow, Limit: tiered.Limit{Tokens: 401, Per: window}},
		{Policy: "log", Algorithm: tiered.SlidingLog, Limit: tiered.Limit{Tokens: 50, Per: window}},
	}
	for i := range loads {
		l := &loads[i]
		l.FailMode, l.Shards = tiered.FailClosed, shards
		l.Offer = 3 * float64(l.Limit.Tokens) / l.Limit.Per.Seconds() / processes
	}
	var all fleet.Fleet
	for i := range processes {
		all = append(all, fleet.Start(t, fleet.Job{URL: url, Loads: loads, Seed: uint64(i)}))
	}
	for _, p := range all {
		p.Begin()
	}
	time.Sleep(3 * time.Second) // real processes and real time
	all[0].Kill()
	names := make([]int, len(nodes)) // of shards of the first load's key
	for i, client := range nodes {
		keys, err := client.Keys(context.Background(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if strings.Contains(key, "{leased/4.") && strings.HasSuffix(key, "/shared}tb1s") {
				names[i]++
			}
		}
	}
	time.Sleep(2 * time.Second)
	all[1].Stop()
	time.Sleep(3 * time.Second)
	all.Stop()

	sum, used := 0, 0
	for _, n := range names {
		sum += n
		used += min(n, 1)
	}
	t.Logf("shards by node: %v", names)
	if sum < shards-1 || sum > shards || used < min(len(nodes), 2) { // each process has two of them, by chance
		t.Errorf("shards by node: %v", names)
	}
	for _, load := range loads {
		requests := all.Records(load.Policy)
		if load.Algorithm != tiered.TokenBucket {
			most := fleet.FullestInterval(requests, window)
			t.Logf("%s: %d requests; the fullest window has %d of %d", load.Policy, len(requests), most, load.Limit.Tokens)
			if most > int(load.Limit.Tokens) || float64(most) < 0.6*float64(load.Limit.Tokens) {
				t.Errorf("%s: %d of %d in a window", load.Policy, most, load.Limit.Tokens)
			}
			continue
		}
		for _, l := range append([]tiered.Limit{load.Limit}, load.Also...) {
			v := fleet.Judge(requests, l)
			t.Logf("%s: %d requests, %d admitted, an ideal bucket %d (%.1f %%); over-admission %.0f; tightest interval: %v",
				load.Policy, len(requests), v.Admitted, v.Ideal, 100*v.Utilisation(), max(0, math.Ceil(v.Over())), v.Worst)
			if v.Over() > 0 {
				t.Errorf("%s: over-admission %v", load.Policy, v.Worst)
			}
			if load.Also == nil && v.Utilisation() < 0.7 {
				t.Errorf("%s: %.2f of the ideal", load.Policy, v.Utilisation())
			}
		}
	}
}
