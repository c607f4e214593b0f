package fleet_test

import (
	"flag"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var steady = flag.Bool("steady", false, "measure how much of a limit real processes use")

// TestSteadyFleet measures on real processes what TestRatios of package tiered measures in virtual
// time: users below their limit are served, and a limit that is exceeded is used, wherever the
// demand is. What it says of time holds while the machine keeps up: a run in which the processes
// were late is told and not judged.
func TestSteadyFleet(t *testing.T) {
	if !*steady {
		t.Skip("a minute of real time, on a quiet machine: make steady")
	}
	const length = 12 * time.Second
	window := tiered.Limit{Tokens: 1000, Per: 2 * time.Second, Burst: 1000}
	for _, c := range []struct {
		name      string
		processes int
		load      fleet.Load
		refused   float64 // of the requests, at most
		used      float64 // of what an ideal bucket admits, at least
		calls     float64 // per request where none is to be refused, else per admitted token; at most
	}{
		{"a sliding window, 0.8 of 1000 per 2 s", 8, fleet.Load{Policy: tiered.Policy{Algorithm: tiered.SlidingWindow, Limit: window}, Offer: 50}, 0.01, 0, 0.1},
		{"a fixed window, 0.8 of 1000 per 2 s", 8, fleet.Load{Policy: tiered.Policy{Algorithm: tiered.FixedWindow, Limit: window}, Offer: 50}, 0.01, 0, 0.1},
		{
			"skew that moves, 3 times 2000/s, burst 500", 10,
			fleet.Load{Policy: tiered.Policy{Limit: tiered.PerSecond(2000).WithBurst(500)}, Offer: 600, Moves: 10},
			1, 0.97, 0.2,
		},
		{
			"skew that moves, 3 times 2000/s, burst 2000", 10,
			fleet.Load{Policy: tiered.Policy{Limit: tiered.PerSecond(2000).WithBurst(2000)}, Offer: 600, Moves: 10},
			1, 0.97, 0.2,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.load.Name = "steady"
			f := fleet.StartAll(t, fleet.Job{URL: redistest.Start(t).URL(), Loads: []fleet.Load{c.load}}, c.processes)
			start := time.Now()
			time.Sleep(length)
			var calls float64
			var lag time.Duration
			for _, r := range f.Stop() {
				for _, n := range r.Stats.Nodes {
					calls += float64(n.Calls.Sent)
				}
				lag = max(lag, r.Lag)
			}
			all := f.Records("steady")
			admitted, over := 0, 0.0
			for _, r := range all {
				if r.Allowed {
					admitted++
				}
			}
			refused, per := float64(len(all)-admitted)/float64(len(all)), float64(len(all))
			v, used := fleet.Judge(all, c.load.Limit), used(all, c.load.Limit, start.Add(2*time.Second)) // the leases begin cold
			switch c.load.Algorithm {
			case tiered.TokenBucket:
				over, per = v.Over(), float64(admitted)
			case tiered.SlidingWindow:
				over = float64(int64(fleet.FullestInterval(all, c.load.Limit.Per)) - c.load.Limit.Tokens)
			default:
				over = float64(int64(fleet.FullestWindow(all, c.load.Limit.Per)) - c.load.Limit.Tokens)
			}
			t.Logf("%d requests, %.2f %% refused, %.3f used, %.3f calls, %.1f over, lag %v", len(all), 100*refused, used, calls/per, over, lag)
			if over > 0 {
				t.Errorf("%.1f tokens over the limit", over)
			}
			if len(all) < 4000 || calls == 0 {
				t.Errorf("only %d requests and %.0f calls: this shows nothing", len(all), calls)
			}
			if lag > 20*time.Millisecond {
				t.Logf("not judged: the processes were up to %v late", lag)
				return
			}
			if refused > c.refused || used < c.used || calls/per > c.calls {
				t.Errorf("want at most %.2f %% refused, %.3f used and %.3f calls", 100*c.refused, c.used, c.calls)
			}
		})
	}
}

// used is what was admitted from a time on of what an ideal bucket admits, requests of one token.
func used(all []fleet.Record, limit tiered.Limit, from time.Time) float64 {
	bucket := ideal.NewBucket(limit.Tokens, limit.Per, limit.Burst)
	var admitted, best float64
	for _, r := range all {
		ok := bucket.Take(r.Before-all[0].Before, 1)
		if r.Before < from.UnixNano() {
			continue
		}
		if ok {
			best++
		}
		if r.Allowed {
			admitted++
		}
	}
	return admitted / best
}
