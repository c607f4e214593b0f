// Package failover decides whether a Redis node is called at all. A [Guard] is the breaker around
// the calls to one node, and [Classify] says what an error means for the node. The package promises
// no compatibility: it follows package tiered.
//
// # The breaker
//
// While a node answers, its Guard is [Closed] and lets every attempt through. Three failures in a
// row open it, but attempts that are under way at one moment and fail together are one failure: a
// node that stands still for 120 ms is no outage, however many calls that holds up. A failure that
// cannot heal by itself (a wrong password) opens it at once. While it is [Open] no caller waits for
// the node: the policy's fail mode answers at once.
//
// After some 50 ms the next attempt goes through as a probe. During the probe the Guard is
// [Probing] and refuses all other attempts. The probe closes the Guard, or opens it again for some
// 100, 200, 400 ms, and from then on for 0.5 to 1 s. The time is drawn anew each time, so that
// processes that lost a node together do not come back together. It grows no further, because each
// process that is not back decides by its fail mode. A late answer closes the Guard too: see
// [Guard.Answered].
//
// # An attempt
//
// Each attempt to reach the node has a beginning and an end:
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
// An attempt ends once: by End, by Abort, or by the Guard's own timer after Options.Timeout. So a
// probe cannot hold the breaker for longer than that, even if its goroutine never returns.
//
// # Cost, locks, goroutines
//
// [Guard.State] and [Guard.Ready] read atomics and allocate nothing. They may be called for every
// decision. Begin, End and Abort take mutexes and cost about a microsecond, so they belong around
// calls to Redis. They hold no mutex while something blocks (but see [Options].OnChange). The
// package owns no goroutine; a timer runs on a goroutine of the runtime. All times are those of
// package time, so they follow the clock of a testing/synctest bubble.
package failover
