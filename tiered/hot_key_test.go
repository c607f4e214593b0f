package tiered_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// partOf returns the part of a hot key that a process uses, of k parts: key#0 to key#k-1. Every
// process has a name of its own, such as its host's. It always uses the same part, so it leases
// tokens from one bucket only.
func partOf(key, process string, k uint64) string {
	h := fnv.New64a()
	h.Write([]byte(process + "/" + key))
	return key + "#" + strconv.FormatUint(h.Sum64()%k, 10)
}

// A key that one Redis server cannot serve is split into parts. Each part has the limit ÷ 4, and
// all together have the limit.
func Example_hotKey() {
	store := remote.NewMemory() // or a Cluster: the parts are keys of their own, on nodes of their own
	defer store.Close()
	whole := tiered.PerSecond(40_000)
	limiter, err := tiered.New(store, tiered.Policy{Name: "all-clients", Limit: tiered.PerSecond(whole.Tokens / 4)}, nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	part := partOf("everybody", "web-7f9c", 4) // os.Hostname names a process that is alone on its host
	fmt.Println(limiter.Allow(ctx, part).Allowed)
	// Output: true
}

// The parts of a hot key together admit no more than the whole limit. What is lost is what too few
// ask for: a part that has fewer processes than the others is not used up, while theirs refuse. The
// worst of some draws of names is judged.
func TestPartsOfAHotKey(t *testing.T) {
	t.Parallel()
	const burst, rate, length = 200, 1000, 3 * time.Second
	draws := 4
	if testing.Short() {
		draws = 1
	}
	for _, c := range []struct {
		processes int
		parts     uint64
		demand    float64 // times the limit
		least     float64 // of what one bucket admits
	}{
		{10, 4, 0.8, 0.7}, {10, 4, 1.5, 0.7}, {10, 8, 1.5, 0.5}, {100, 4, 0.8, 0.95}, {100, 4, 1.5, 0.95},
	} {
		least := 1.0
		for draw := range draws {
			random := rand.New(rand.NewPCG(uint64(draw), 1))
			synctest.Test(t, func(t *testing.T) {
				store := remote.NewMemory()
				limit := tiered.PerSecond(rate / int64(c.parts)).WithBurst(burst / int64(c.parts))
				var all []*tiered.Limiter
				var parts []string
				for range c.processes {
					l, err := tiered.New(store, tiered.Policy{Name: "hot", Limit: limit, FailMode: tiered.FailClosed}, nil)
					if err != nil {
						t.Fatal(err)
					}
					all, parts = append(all, l), append(parts, partOf("key", fmt.Sprintf("web-%x", random.Uint32()), c.parts))
				}
				start := time.Now()
				asked, admitted := 0, 0
				for ; time.Since(start) < length; time.Sleep(time.Duration(float64(time.Second) / rate / c.demand)) {
					if i := asked % c.processes; all[i].Allow(t.Context(), parts[i]).Allowed {
						admitted++
					}
					asked++
				}
				most := burst + int(rate*time.Since(start).Seconds())
				if least = min(least, float64(admitted)/float64(min(asked, most))); admitted > most {
					t.Errorf("%d admitted of %d, at most %d", admitted, asked, most)
				}
				for _, l := range all {
					_ = l.Close(context.Background())
				}
			})
		}
		t.Logf("%d processes in %d parts, %.1f times the limit: %.2f of what one bucket admits", c.processes, c.parts, c.demand, least)
		if least < c.least {
			t.Errorf("want %.2f at least", c.least)
		}
	}
}
