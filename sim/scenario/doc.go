// Package scenario is what the simulator plays. A scenario says which processes share which limits,
// what is requested, which faults come when, and what must hold all the same. It is data; package
// sim runs it.
//
// It is written in YAML:
//
//	name: Redis black hole for 15 s
//	learn: what each fail mode costs while Redis is silent, and how fast you come back
//	limits:
//	  - {name: api, rate: 1000/s, burst: 1000}
//	  - {name: users, rate: 100/min}
//	fleet: {n: 50, mode: local}
//	traffic:
//	  - {shape: poisson, limit: api, rate: 1500/s}
//	  - {shape: poisson, limit: users, rate: 300/s, keys: 200, keyskew: 1.1}
//	net: {rtt: 300us, jitter: 200us}
//	faults:
//	  - {at: 20s, kind: blackhole, for: 15s}
//	  - {at: 41s, kind: crash, procs: 10%, restart: 2s}
//	run: 60s
//	warmup: 5s
//	expect:
//	  - over_admission <= 1000
//	  - decide_max <= 20ms after=20s before=35s
//	sometimes: [breaker_open, lease_lost]
//	sweep:
//	  fleet.size: [0, 5, 20]
//	  fleet.mode: [open, closed, local]
//
// [Parse] reads it and reports all that is wrong with it at once, with line and column;
// [Scenario.String] writes it. [Scenario.Set] changes a field by its path, as a sweep does. The
// page sim/scenarios.md is the reference.
//
// A Scenario is data without a lock: goroutines may read one together, and change only their own
// ([Scenario.Clone]). Nothing in this package blocks.
package scenario
