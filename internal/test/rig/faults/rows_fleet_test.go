package faults_test

import (
	"fmt"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fleet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// fleetRows are what happens to the processes, and what their callers do.
var fleetRows = []row{
	{
		name: "pool of 2, 500 goroutines", prompt: true,
		job: func(s *faultRun, job *fleet.Job) {
			job.Client.Pool = 2
			for i := range job.Loads {
				job.Loads[i].Workers = 500 / len(job.Loads)
			}
		},
		begin: func(*faultRun) {},
	},
	{
		name: "half of the callers cancel", prompt: true,
		job: func(s *faultRun, job *fleet.Job) {
			// Keys that are asked for now and then: each request is a round trip, which a caller
			// can leave.
			job.Loads = append(job.Loads, fleet.Load{
				Policy: tiered.Policy{
					Name: "leaving", FailMode: tiered.FailClosed, Limit: limit, Lease: tiered.Lease{Size: tiered.NoLease},
				},
				Keys: 1000, Offer: 300, Cancel: 0.5,
			})
		},
		begin: func(*faultRun) {},
		check: func(s *faultRun) {
			left, failed, all := 0, 0, s.fleet.Records("leaving")
			for _, r := range all {
				switch r.Reason {
				case tiered.Canceled:
					left++
				case tiered.Unavailable:
					failed++
				}
			}
			s.note = fmt.Sprintf("%d of %d callers left, %d were not served", left, len(all), failed)
			if s.lag <= defaults.Timeout && (left < len(all)/100 || float64(failed) > max(0.002, s.strays(s.started, s.ended))*float64(len(all))) {
				s.complain("%s", s.note)
			}
		},
	},
	{
		name:  "process killed with leases",
		begin: func(s *faultRun) { s.fleet[0].Kill() },
	},
	{
		// Longer than their leases last. What they hold then is no longer their own; large leases,
		// or it would hardly show.
		name: "processes paused past their leases", breakers: may,
		job: func(s *faultRun, job *fleet.Job) {
			for i := range job.Loads {
				job.Loads[i].Lease.Size = burst / 4
			}
		},
		begin: func(s *faultRun) {
			s.paused = s.fleet[:processes/2]
			for _, p := range s.paused {
				p.Pause()
			}
		},
		end: func(s *faultRun) {
			for _, p := range s.paused {
				p.Resume()
			}
		},
		check: func(s *faultRun) {
			for _, p := range s.paused {
				if n := s.reports[p].Stats.Standstills; n != 1 {
					s.complain("a paused process counted %d standstills, want 1", n)
				}
			}
		},
	},
	{
		name: "flood of unknown keys", length: 40 * time.Second, // a million of them, on a slow machine too
		job: func(s *faultRun, job *fleet.Job) {
			job.MaxKeys = floodKeys
			job.Loads = append(job.Loads, fleet.Load{
				Policy: tiered.Policy{Name: "flood", FailMode: tiered.FailClosed, Limit: tiered.PerMinute(60)},
				Keys:   -1, Most: 1_000_000/processes + 1,
				Offer: 5000, Workers: 16,
			})
		},
		begin: func(*faultRun) {},
		check: func(s *faultRun) {
			all := s.fleet.Records("flood")
			var heap uint64
			keys := 0
			for _, r := range s.reports {
				heap, keys = max(heap, r.Heap), max(keys, r.Keys)
			}
			s.note = fmt.Sprintf("%d unknown keys; at most %d kept, %.1f MB of heap", len(all), keys, float64(heap)/1e6)
			if len(all) < 1_000_000 || keys > floodKeys || heap > floodHeap {
				s.complain("%s", s.note)
			}
		},
	},
}

const (
	floodKeys = 10_000

	// floodHeap: 10 000 keys of 600 bytes, as many on their way out, and 8 MB of everything else.
	floodHeap = 20 << 20
)
