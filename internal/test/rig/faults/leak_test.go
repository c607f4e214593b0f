package faults_test

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestCloseDuringAnOutage: whatever an outage left under way ends when Close comes in the middle of
// it, and Close does not wait for longer than it may.
func TestCloseDuringAnOutage(t *testing.T) {
	for name, fault := range map[string]func(*redistest.Server){
		"killed": (*redistest.Server).Kill, "frozen": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			job := fleet.Job{Client: &fleet.Client{Addrs: []string{server.Addr}}, Processes: 3}
			for mode := tiered.FailLocal; mode <= tiered.FailClosed; mode++ {
				hot := fleet.Load{Policy: tiered.Policy{Name: mode.String(), Limit: limit, FailMode: mode}, Offer: 400}
				cold := hot // keys that nobody has seen: they hold nothing
				cold.Name, cold.Keys = "cold-"+hot.Name, -1
				job.Loads = append(job.Loads, hot, cold)
			}
			p := fleet.StartAll(t, job, 1)[0]
			time.Sleep(300 * time.Millisecond)
			fault(server)
			time.Sleep(1200 * time.Millisecond) // long enough for probes, too short for the end of the leases
			for node, s := range p.Report().Stats.Nodes {
				if s.Outages.Breaker == "closed" {
					t.Errorf("the breaker of %s is closed", node)
				}
			}
			r := p.Stop()
			t.Logf("Close took %v: %v", r.CloseTime, r.Closing)
			if r.Goroutines > 0 || r.CloseTime > fleet.CloseTime+250*time.Millisecond { // a stalled machine's share of it
				t.Errorf("%d goroutines stay, and Close took %v", r.Goroutines, r.CloseTime)
			}
		})
	}
}
