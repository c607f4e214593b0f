// Package tiered is a rate limiter for services that run as many processes: a global limit at the price of a local one.
//
// Each process takes tokens in batches from a bucket in Redis and decides from them without asking. For any number of
// processes and any interval of length t, a key is admitted at most
//
//	burst + rate·t
//
// tokens, as by one ideal token bucket: what a process has leased counts against the burst until it is spent, returned or
// burnt.
//
//	store, err := remote.Open("redis://127.0.0.1:6379", nil)
//	limiter, err := tiered.New(store, tiered.Policy{
//		Name:  "per-user",
//		Limit: tiered.PerSecond(100).WithBurst(200),
//	}, nil)
//	…
//	if d := limiter.Allow(ctx, userID); !d.Allowed {
//		// d.Reason says why, d.RetryAfter when to come back
//	}
//	…
//	limiter.Close(ctx) // gives back what is leased
//
// # What a decision costs
//
// A hot key is decided in the process, without allocation or round trip; its lease is renewed in the background. A key
// that is asked for rarely is taken directly: one round trip, shared with others that are due. A key that is known to be
// over its limit is refused in the process. No decision waits longer than [Options].Budget.
//
// # Other ways to count
//
// [Policy].Also puts further limits on each key, as in ten per second and a thousand per hour. [Policy].Algorithm counts in windows
// instead: [FixedWindow], [SlidingWindow], [SlidingLog]. docs/algorithms.md compares them.
//
// # When Redis does not answer
//
// A lease is spent to its deadline; then the policy's [FailMode] decides, at once: by this process' share of the limit
// ([FailLocal], the default), by admitting everything ([FailOpen]) or nothing ([FailClosed]). A breaker per Redis node finds
// out within a second that it is back, and what was admitted without Redis is then charged, as far as Redis lost no refill
// meanwhile. The limiter starts while Redis is down. Set [Options].Processes to the number of processes that you run at least.
//
// # Waiting, reserving, watching
//
// [Limiter.Wait] waits its turn, [Limiter.Reserve] takes tokens that can be given back or corrected, [Limiter.Do] counts only
// successes, [Limiter.Peek] looks and takes nothing. [Group.Stats] counts, [Trace] tells each event.
//
// # One Group, many policies
//
// [New] is for one policy. [NewGroup] and [Group.Limiter] let any number of them share one cache of keys, one set of calls
// to Redis and one set of goroutines.
//
// [Strictest] joins keys of several policies that one request needs together: all of them admit it, or none. Limits may
// differ by key ([Policy].PerKey) and change while the service runs ([Limiter.SetPolicy]).
package tiered
