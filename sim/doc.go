// Package sim rehearses failures. It runs the shipped limiter, as many processes on one Redis, through a scenario
// in virtual time, and reports what was admitted, refused and waited for.
//
// In a test of your own service, with your own policy:
//
//	func TestOutage(t *testing.T) {
//		r, err := sim.Run(sim.MustLoad("testdata/checkout.yaml"), &sim.Options{Policies: []tiered.Policy{policy}})
//		if err != nil || !r.Passed {
//			t.Fatal(err, r)
//		}
//	}
//
// sim/README.md teaches it in ten minutes. [Sweep] varies a scenario, and `tiersim tune` chooses a policy.
//
// A program needs no test for it: [Run] may be called anywhere outside of a bubble.
//
// # What runs
//
// The limiter is the shipped one. Each process is a tiered.Group, with its breakers, in a testing/synctest bubble. The
// clock of a bubble goes on when no goroutine has anything left to do. So a minute takes half a second, and a timeout
// of 50 ms is 50 ms. Only what is below the Group is simulated: Redis is a remote.Memory, which answers as the scripts do
// (the tests of package remote compare both on a real Redis), and a message is a goroutine that sleeps.
//
// # Traffic
//
// Each element of traffic is one stream of requests. They are spread over the live processes, as by a load balancer:
// those of a process that died go to the others. A process that stands still gets its part too. When it continues
// it decides the requests that came less than a second before. Clients that wait for their answers need a
// millisecond on average from an answer to the next request, besides thinking.
//
// # Faults
//
// A fault of the network belongs to a place in the fleet: the successor of a process that is cut off is cut off
// too. A connection ends with a lost request or reply, and with a timeout. A new one takes two round trips more,
// and cannot be made through a black hole. What was on its way when a process crashed still arrives. A frozen Redis
// later executes what lay in its buffers, 12 µs apart. A killed one loses it.
//
// # The same seed, the same run
//
// All random numbers come from the seed and the name of their purpose: arrivals, keys, delays, jitter, the processes
// that a fault concerns, lease ids, the hashes of keys. No two things whose order matters happen at one instant, because
// then the processors would decide their order. So each process has nanoseconds of its own at which it reaches Redis,
// callers that were held up continue one after the other, and a process looks at what is due when all of it is due.
// [measure.Report].Unseed is a hash of all decisions, calls and changes of breakers: the same for equal runs.
//
// # What it does not show
//
// There is one Redis and no Cluster. Redis evicts nothing for want of memory. Decisions and scripts take no time, so no
// processor is overloaded. A pause holds up the requests, calls and replies of a process but not its timers; those of a
// process that was really stopped fire when it continues. Real processes on a real Redis are tested by make faults.
package sim
