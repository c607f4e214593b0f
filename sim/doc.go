// Package sim rehearses failures. It runs the shipped limiter, as many processes on one Redis, through a scenario
// in virtual time, and reports what was admitted, refused and waited for.
//
// In a test of your own service, with your own policy:
//
//	func TestOutage(t *testing.T) {
//		r, err := sim.Run(sim.MustLoad("testdata/checkout.sim"), &sim.Options{Policies: []tiered.Policy{policy}})
//		if err != nil || !r.Passed {
//			t.Fatal(err, r)
//		}
//	}
//
// sim/README.md teaches it in ten minutes. [Sweep] varies a scenario, and `tiersim tune` searches for a policy.
//
// A program needs no test for it: [Run] may be called anywhere outside of a bubble.
//
// # What runs
//
// Nothing of the limiter is a model. Each process is a tiered.Group, breakers and all, in a testing/synctest
// bubble. The clock of a bubble goes on when no goroutine has anything left to do. So a minute takes half a second,
// and a timeout of 50 ms is 50 ms. What is below the Group belongs to the engine. On [Virtual] Redis is a
// remote.Memory, which answers as the scripts do, and a message is a goroutine that sleeps. On [Lua] the scripts
// run in miniredis, a Redis in Go, and calls go through go-redis and a faultnet. The two agree as well as two seeds
// of one engine do; a test checks that.
//
// On [Live] nothing is a model at all: see below.
//
// go-redis has one logger for a whole program. Importing this package sets it to the usual one, less the lines
// about connections that failed because a scenario says so. A logger that a test or TestMain sets stays; one that
// is set while packages are initialized may not.
//
// # Traffic
//
// Each traffic statement is one stream of requests. They are spread over the live processes, as by a load balancer:
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
// # The audit
//
// On the engines Virtual and Lua an audit compares what Redis stores after each call with what it must store, and
// what the processes state and hold with their records: see [measure.Audit]. It finds a token too many even if no
// request wants it. It changes nothing.
//
// # The same seed, the same run
//
// All that is random comes from the seed, by the name of its purpose: arrivals, keys, delays, jitter, the processes
// that a fault concerns, lease ids, the hashes of keys. No two things whose order matters happen at one instant, so
// the processors cannot reorder them: each process has nanoseconds of its own at which it reaches Redis, callers
// that were held up continue one after the other, and a process looks at what is due when all that could be due is.
// [measure.Report].Unseed is a hash of all decisions, calls and changes of breakers: the same for equal runs.
//
// # Real processes
//
// [Live] plays a scenario in real time, outside of a bubble: Redis is a redis-server (it must be in PATH), and each
// process a process, this program started again, with a go-redis client of its own and the network's faults in it.
// TestMain calls [Child] first, so that a process knows what it is; a program calls it first in main. The same
// driver sends them requests through a pipe.
//
//	func TestMain(m *testing.M) {
//		sim.Child()
//		os.Exit(m.Run())
//	}
//
// A fault is made for real. Killed is SIGKILL, and frozen and paused SIGSTOP; a failover promotes a replica that
// followed no more; a clock is set by a library that is preloaded (cc must be in PATH); and Redis refuses because
// it is in the state in which it does: READONLY follows nobody, OOM has no memory, LOADING restarts with its data,
// WRONGTYPE has other things in the buckets' places. What a single redis-server never says is an error before the
// run, and so is more than [MostLiveRate] and [MostLiveStarts].
//
// Some things are otherwise than in a bubble:
//   - No two runs are equal. The seed still decides who asks when for what, and there is no Unseed.
//   - What Redis granted to a process that had gone or given up is seen by nobody, so what is lost is not known; and what a
//     process did since its last sample, a step of the series or less before it was killed, is not in the ledger. The
//     report says so, and an expectation of lost is neither met nor broken. The calls and decisions of a process that was
//     killed count as far as it had told them.
//   - A round trip of less than 2 ms is the machine's own: the system's timers are no finer.
//   - The machine has other things to do. The report has its lag (LagMs), the longest that it held up a process that was
//     ready to run; a bound on a time allows for so much.
//   - The meter hears everything when the run is over, in the order of the processes' own clock: some 200 bytes for each
//     request until then. A request counts from when it came to its process.
//   - Who is asked while a process starts waits for that, and a process that is killed has decided what it had in hand.
//   - Nobody sees Redis and the processes at once, so there is no audit.
//   - Evicted is DEL: which buckets, Redis itself would choose by other rules.
//
// # What it does not show
//
// There is one Redis: no cluster. Nothing is evicted for want of memory. But for the engine Live, decisions and
// scripts take no time, so there is no overload of processors; and a pause holds up a process' requests, calls and
// replies, not its timers, which in a process that was stopped are due when it goes on.
package sim
