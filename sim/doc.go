// Package sim rehearses failures: it runs the shipped limiter, as many processes on one Redis, through whatever a scenario
// says in virtual time, and reports what was admitted, refused and waited for.
//
// In a test of your own service, with your own policy:
//
//	func TestOutage(t *testing.T) {
//		r, err := sim.Run(t, sim.MustLoad("testdata/checkout.sim"), &sim.Options{Policies: []tiered.Policy{policy}})
//		if err != nil || !r.Passed {
//			t.Fatal(err, r)
//		}
//	}
//
// docs/simulator.md teaches it in ten minutes. [Sweep] varies a scenario, package tune searches for a policy.
//
// A program of its own starts with [Main].
//
// # What runs
//
// Nothing of the limiter is a model: each process is a tiered.Group, breakers and all, in a testing/synctest bubble, whose
// clock goes on when nobody has anything left to do. So a minute takes half a second, and a timeout of 50 ms is 50 ms. What
// is below the Group is the engine's. On [Virtual] Redis is a remote.Memory, which answers as the scripts do, and a message
// is a goroutine that sleeps. On [Lua] the scripts run in miniredis, a Redis in Go, and calls go through go-redis and a
// faultnet. The two agree as well as two seeds of one do; a test holds them to that.
//
// go-redis has one logger for a whole program. Importing this package sets it to the usual one, less the lines about connections
// that failed because a scenario says so. A logger that a test or TestMain sets stays; one that is set while packages are
// initialized may not.
//
// # Who asks whom
//
// Each traffic statement is one stream of requests, spread over the processes that are there at the moment, as a load
// balancer would: those of a process that died go to the others. A process that stands still gets its part all the same, and
// those who have waited for it for less than a second are asked about when it goes on. Clients who wait for their answers
// need a millisecond on average from one to the next request, besides thinking.
//
// # Faults
//
// A fault of the network belongs to a place in the fleet: who replaces a process that is cut off is cut off too. A
// connection is lost with a request or a reply, and by a timeout; a new one takes two round trips more, and is not made
// through a black hole. What was on its way when a process crashed still arrives. Redis that is frozen executes afterwards
// what lay in its buffers, 12 µs apart, and a killed one has none of it.
//
// # The same seed, the same run
//
// All that is random comes from the seed, by the name of what it is for: arrivals, keys, delays, jitter, which processes a
// fault concerns, lease ids, the hashes of keys. No two things happen at one instant that the processors could put in
// another order: processes have nanoseconds of their own to reach Redis in, those who were held up go on one after the other,
// and a process looks at what is due when all that could be due is. [measure.Report].Unseed is a hash of all decisions, calls and
// changes of breakers: the same for equal runs.
//
// # What it does not show
//
// Decisions and scripts take no virtual time, so there is no overload of processors here. Nothing is evicted for want of
// memory, and there is one Redis: no cluster. A pause holds up a process' requests, calls and replies, not its timers, which
// in a process that was stopped are due when it goes on.
package sim
