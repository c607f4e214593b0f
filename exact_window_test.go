package tiered_test

import (
	"math"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestExactWindows is the promise of the windows: eight processes share limits of each algorithm, leased and direct, through a
// real Redis, each under three times its limit. One process is killed and another one stopped on the way, and no window admits
// more than its limit.
func TestExactWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("10 s of real time")
	}
	const processes, window = 8, 2 * time.Second
	limit := func(n int64) tiered.Limit { return tiered.Limit{Tokens: n, Per: window} }
	loads := []fleet.Load{
		{Policy: "fixed", Algorithm: tiered.FixedWindow, Calendar: true, Limit: limit(400)},
		{Policy: "fixed-direct", Algorithm: tiered.FixedWindow, Calendar: true, Limit: limit(100), Size: tiered.NoLease},
		{Policy: "sliding", Algorithm: tiered.SlidingWindow, Limit: limit(400)},
		{Policy: "sliding-direct", Algorithm: tiered.SlidingWindow, Limit: limit(100), Size: tiered.NoLease},
		{Policy: "buckets", Limit: limit(200).WithBurst(50), Also: []tiered.Limit{tiered.PerSecond(150).WithBurst(150)}},
		{Policy: "log", Algorithm: tiered.SlidingLog, Limit: limit(50)},
	}
	for i := range loads {
		loads[i].FailMode = tiered.FailClosed
		loads[i].Offer = 3 * float64(loads[i].Limit.Tokens) / window.Seconds() / processes
	}
	server := redistest.Start(t)
	var all fleet.Fleet
	for i := range processes {
		all = append(all, fleet.Start(t, fleet.Job{URL: server.URL(), Loads: loads, Seed: uint64(i)}))
	}
	for _, p := range all {
		p.Begin()
	}
	time.Sleep(3 * time.Second) // real processes and real time
	all[0].Kill()
	time.Sleep(2 * time.Second)
	all[1].Stop()
	time.Sleep(4 * time.Second)
	all.Stop()

	for _, load := range loads {
		requests := all.Records(load.Policy)
		if load.Algorithm == tiered.TokenBucket {
			for _, l := range append([]tiered.Limit{load.Limit}, load.Also...) {
				v := fleet.Judge(requests, l)
				t.Logf("%s, %d per %v: %d requests, %d admitted: over-admission %.0f; tightest interval: %v",
					load.Policy, l.Tokens, l.Per, len(requests), v.Admitted, max(0, math.Ceil(v.Over())), v.Worst)
				if v.Over() > 0 || v.Admitted < 500 {
					t.Errorf("%s: over-admission %v", load.Policy, v.Worst)
				}
			}
			continue
		}
		most := fleet.FullestInterval(requests, window)
		if load.Algorithm == tiered.FixedWindow {
			most = fleet.FullestWindow(requests, window)
		}
		over := most - int(load.Limit.Tokens)
		t.Logf("%s, %v: %d requests of %d processes; the fullest window has %d of %d: over-admission %d",
			load.Policy, load.Algorithm, len(requests), processes, most, load.Limit.Tokens, max(0, over))
		if over > 0 {
			t.Errorf("%s: over-admission %d", load.Policy, over)
		}
		if float64(most) < 0.6*float64(load.Limit.Tokens) {
			t.Errorf("%s: this shows little", load.Policy)
		}
	}
}
