// Package failover decides whether a Redis node is asked at all: one [Guard] per node is the breaker around its calls, and
// [Classify] says what an error tells about the node.
//
// # The breaker
//
// While a node answers, its Guard is [Closed] and lets everything through. Three failures in a row open it, or a single
// one that cannot heal by itself (a wrong password). While it is [Open] nobody waits for the node: the policy's fail mode
// answers at once. After 0.5 to 1 s, drawn anew each time so that processes which lost a node together do not come back
// together, the next call that is due goes through as a probe; until it ends the Guard is [Probing] and refuses all
// others. The probe closes it, or opens it again for as long; the wait never grows, because until the last process is
// back part of the fleet decides alone.
//
// # An attempt
//
// Each attempt to reach the node is bracketed:
//
//	a, ok := g.Begin(giveUp)
//	if !ok {
//		return failMode()
//	}
//	defer a.Abort() // a panic or runtime.Goexit is a failure as well
//	err := call()
//	if !a.End(err) {
//		return // it took longer than Timeout, and giveUp has answered
//	}
//
// An attempt ends once: by End, by Abort, or by the Guard's own timer after Options.Timeout. So no probe can hold the
// breaker for longer than that, whatever becomes of its goroutine.
//
// # Cost, locks, goroutines
//
// [Guard.State] and [Guard.Ready] read atomics and allocate nothing: they are made for every decision. Begin, End and Abort
// take mutexes, never across anything that blocks (but see [Options].OnChange), and cost about a microsecond: they belong
// around calls to Redis. The package owns no goroutine; a timer that fires runs on one of the runtime's. All time is that
// of package time, so that a testing/synctest bubble sees all of it.
package failover
