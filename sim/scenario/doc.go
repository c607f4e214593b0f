// Package scenario is the language of the simulator. A scenario says which processes share which limits, what is
// requested, which faults come when, and what must hold all the same. It is data; package sim runs it.
//
// It is plain text, a statement per line, in any order; so may be the times of the faults:
//
//	# a comment, to the end of the line
//	name      "Redis black hole for 15 s"
//	learn     "what each fail mode costs while Redis is silent, and how fast you come back"
//	limit     api rate=1000/s burst=1000
//	limit     users rate=100/min
//	fleet     n=50 mode=local
//	traffic   poisson limit=api rate=1500/s
//	traffic   poisson limit=users rate=300/s keys=200 keyskew=1.1
//	net       rtt=300us jitter=200us
//	at 20s    blackhole for=15s
//	at 41s    crash procs=10% restart=2s
//	run       60s warmup=5s
//	expect    over_admission <= 1000
//	expect    decide_p99 <= 1ms after=20s before=35s
//	sometimes breaker_open lease_lost
//	sweep     fleet.size=0,5,20 fleet.mode=open,closed,local
//
// [Parse] reads it and reports what is wrong with its line and column, all of it at once; [Scenario.String] writes it
// in one canonical form that parses to the same; JSON is its twin for programs, read by [ParseJSON]. [Scenario.Set]
// changes a field by its path, as a sweep does. The page sim/scenarios.md is the reference.
//
// A Scenario is data without a lock: goroutines may read one together, and change only their own ([Scenario.Clone]).
// Nothing in this package blocks.
package scenario
