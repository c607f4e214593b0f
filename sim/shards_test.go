package sim

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// crowded are keys in shards that are asked for in bursts, so that many wait for one answer and go on to another
// shard at the same instant, while all that can go wrong does.
const crowded = `name: shards, and all at once
limits:
  - {name: bucket, rate: 60/s, burst: 30}
  - {name: window, rate: 60/s, burst: 60}
  - {name: log, rate: 60/s, burst: 60}
  - {name: sliding, rate: 60/s, burst: 60}
  - {name: several, rate: 60/s, burst: 30}
fleet: {n: 8, maxkeys: 60}
traffic:
  - {shape: closed, limit: bucket, clients: 60, think: 5ms, retry: 1, keys: 8}
  - {shape: bursts, limit: window, rate: 300/s, every: 500ms, for: 50ms, keys: 8}
  - {shape: bursts, limit: log, rate: 300/s, every: 500ms, for: 50ms, keys: 8, cost: 1, maxcost: 3}
  - {shape: bursts, limit: sliding, rate: 300/s, every: 500ms, for: 50ms, keys: 8}
  - {shape: closed, limit: several, clients: 60, think: 5ms, retry: 1, keys: 8, cancel: 10%}
net: {rtt: 2ms, jitter: 200us}
faults:
  - {at: 2s, kind: freeze, for: 100ms}
  - {at: 2200ms, kind: pause, for: 300ms, procs: 3}
  - {at: 2600ms, kind: kill, for: 300ms}
  - {at: 3s, kind: lose, for: 300ms, chance: 20%}
  - {at: 3500ms, kind: deploy, every: 100ms}
run: 4s
`

// A run with Shards repeats as any other does, whatever the algorithm is, and with several limits on a key.
func TestShardsRepeat(t *testing.T) {
	policy := func(name string, a tiered.Algorithm, shards int) tiered.Policy {
		l := tiered.PerSecond(60)
		if a == tiered.TokenBucket {
			l = l.WithBurst(30)
		}
		return tiered.Policy{Name: name, Limit: l, Algorithm: a, Shards: shards}
	}
	several := policy("several", tiered.TokenBucket, 3)
	several.Also = []tiered.Limit{{Tokens: 100, Per: 10 * time.Second, Burst: 60}}
	policies := []tiered.Policy{
		policy("bucket", tiered.TokenBucket, 4), policy("window", tiered.FixedWindow, 3),
		policy("log", tiered.SlidingLog, 2),
		policy("sliding", tiered.SlidingWindow, 4), several,
	}
	for seed := range uint64(2) {
		r := repeats(t, crowded, &Options{Seed: seed + 1, Policies: policies})
		if r.Metrics.Unaccounted != 0 {
			t.Errorf("seed %d: %d tokens come from nowhere or are not counted", seed+1, r.Metrics.Unaccounted)
		}
		if testing.Short() {
			break
		}
	}
}
