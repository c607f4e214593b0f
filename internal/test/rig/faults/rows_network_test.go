package faults_test

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// networkRows are what happens between the processes and a server that is well.
var networkRows = []row{
	{
		name: "black hole", quick: true, breakers: opens,
		begin: net(blackHole),
		end:   net(faultnet.Faults{}),
	},
	{
		name: "replies lost", breakers: may,
		begin: net(faultnet.Faults{CutAfter: 0.3}),
		end:   net(faultnet.Faults{}),
	},
	{
		// 14 ms there and back are within Budget. Twice that are not: some have to wait for two
		// calls.
		name: "latency below Budget", allow: 0.05,
		begin: net(faultnet.Faults{Delay: 7 * time.Millisecond}),
		end:   net(faultnet.Faults{}),
	},
	{
		// 30 ms: nobody waits that long, but Redis answers. A breaker would only make it worse.
		name: "latency above Budget", breakers: may,
		begin: net(faultnet.Faults{Delay: 15 * time.Millisecond}),
		end:   net(faultnet.Faults{}),
		check: func(s *faultRun) {
			for _, r := range s.reports {
				if r.Lag < 20*time.Millisecond && len(r.States) > 0 {
					s.complain("a breaker opened while Redis answered within Timeout: %+v", r.States)
				}
			}
		},
	},
	{
		// 80 ms: it opens until late answers have told that Redis answers, if it does at all.
		name: "latency above Timeout", breakers: may,
		begin: net(faultnet.Faults{Delay: 40 * time.Millisecond}),
		end:   net(faultnet.Faults{}),
	},
	{
		name: "flapping", breakers: may,
		subjects: func(s *faultRun) []subject {
			calm := s.subject("calm", tiered.FailLocal)
			calm.Offer = 0.5 * perSecond / processes
			return append(s.standard(), calm)
		},
		begin: func(s *faultRun) {
			for range 5 {
				s.server.Pause()
				time.Sleep(time.Second)
				s.server.Resume()
				time.Sleep(time.Second)
			}
		},
		length: time.Millisecond,
		check: func(s *faultRun) {
			refused, all := 0, s.fleet.Records("calm")
			for _, r := range all {
				if !r.Allowed {
					refused++
				}
			}
			if float64(refused) > 0.001*float64(len(all)) {
				s.complain("%d of %d refused at half the limit", refused, len(all))
			}
		},
	},
	{
		name: "half of the fleet cut off", breakers: opens, unaffected: processes / 2,
		begin: func(s *faultRun) { s.fleet[:processes/2].Net(blackHole) },
		end:   func(s *faultRun) { s.fleet.Net(faultnet.Faults{}) },
	},
}

// blackHole swallows everything.
var blackHole = faultnet.Faults{HoldDial: true, HoldOut: true, HoldIn: true}

// net makes the network of all processes like that.
func net(f faultnet.Faults) func(*faultRun) {
	return func(s *faultRun) { s.fleet.Net(f) }
}
