// Package sim rehearses failures. It runs the shipped limiter, as many processes on one Redis,
// through a scenario in virtual time, and reports what was admitted, refused and waited for.
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
// sim/README.md teaches it in ten minutes. [Sweep] varies a scenario, and `tiersim tune` chooses a
// policy.
//
// A program needs no test for it: [Run] may be called anywhere outside of a bubble.
//
// # What runs
//
// The limiter is the shipped one. Each process is a tiered.Group, with its breakers, in a
// testing/synctest bubble. The clock of a bubble goes on when no goroutine has anything left to do.
// So a minute takes half a second, and a timeout of 50 ms is 50 ms. Only what is below the Group is
// simulated: Redis is a remote.Memory, which answers as the scripts do (the tests of package remote
// compare both on a real Redis), and a message is a goroutine that sleeps.
//
// # Traffic
//
// Each element of traffic is one stream of requests. They are spread over the live processes, as by
// a load balancer: when a process dies, the others get its requests. A process that stands still
// gets its part too, and when it continues it decides the requests that came less than a second
// before. Clients of shape closed send the next request a millisecond on average after an answer,
// and after the time that they think.
//
// # Faults
//
// A fault of the network belongs to a place in the fleet, so the successor of a process that is cut
// off is cut off too. A connection ends when a request or a reply is lost, or when a call times
// out. A new one takes two round trips more, and cannot be made through a black hole. What was on
// its way when a process crashed still arrives. A Redis that was frozen executes the calls in its
// buffers when it continues, 12 µs apart. One that was killed loses them.
//
// # The same seed, the same run
//
// All random numbers come from the seed and the name of their purpose: arrivals, keys, delays,
// jitter, the processes that a fault concerns, lease ids, the hashes of keys. No two events whose
// order matters happen at the same instant, because then the processors would decide their order.
// So each process reaches Redis at nanoseconds that no other process uses, and callers that were
// held up continue one after the other. [measure.Report].Unseed is a hash of all decisions, calls
// and changes of breakers, so equal runs have the same.
//
// # What it does not show
//
// There is one Redis and no Cluster. Redis evicts nothing when its memory is full. Decisions and
// scripts take no time, so no processor is overloaded. A pause holds up the requests, calls and
// replies of a process but not its timers; in a process that was really stopped they fire when it
// continues. Real processes on a real Redis are tested by make faults.
package sim
