// Package tiered is a rate limiter for services that run as many processes. It keeps one limit for all of them, at
// about the price of a limit in one process.
//
// Each process takes tokens in batches from a bucket in Redis, and then decides without asking Redis. With any
// number of processes, in any interval of length t, a key gets at most
//
//	burst + rate·t
//
// tokens, as by a single ideal token bucket. This holds while Redis answers and keeps its data. What [Limiter.Refund]
// and [Limiter.Reset] give comes on top, and so does debt that is forgiven (Policy.MaxDebt). A lease is a batch of
// tokens that a process has taken from Redis. The tokens in leases and those in Redis are together never more than the
// burst. Tokens are burnt if the process that holds them dies, or if they are unused at the end of the lease.
//
//	store, err := remote.Open("redis://127.0.0.1:6379", nil) // or remote.NewRedis, with a client of yours
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
//	store.Close()      // after it: the limiter does not close the store
//
// If several services or environments share a Redis, give each its own remote.RedisOptions.Prefix.
//
// # What a decision costs
//
// A hot key is decided in the process, without allocation or round trip. Its lease is renewed in the background. For a
// rarely used key each decision takes its tokens directly from Redis. That is one round trip, which other waiting
// calls share. A key that is known to be over its limit is refused in the process. A decision waits for Redis for at
// most [Options].Budget, and is there before the deadline of its context.
//
// # Other ways to count
//
// [Policy].Also puts further limits on each key, as in ten per second and a thousand per hour. [Policy].Algorithm
// counts in windows instead: [FixedWindow], [SlidingWindow], [SlidingLog]. docs/choosing.md compares them.
//
// # When Redis does not answer
//
// A process first spends its lease, until the lease's deadline, and refuses for up to 5 s the keys that it knows to be over
// their limit. Then the policy's FailMode decides: by this process'
// fallback, a part of the limit (FailLocal, the default), by admitting everything (FailOpen) or nothing (FailClosed). A
// decision waits for that at most Options.Budget, and not at all after three failed calls in a row, because then a breaker
// of the Redis node opens. A key alone whose calls fail is not asked about for half a second each time. The breaker notices
// within a second that the node is back, or within three if there are no requests, and the request that finds out still goes
// by the FailMode. Then what was admitted without Redis is charged to the bucket, less the refill that a full bucket lost. The limiter can start while Redis is down, so set
// Options.Processes to the least number of processes that you run.
//
// # Waiting, reserving, watching
//
// [Limiter.Wait] waits for its turn, [Limiter.Reserve] takes tokens that can be returned or corrected, and [Limiter.Peek]
// looks and takes nothing. [Group.Stats] counts, and [Trace] reports each event.
//
// # One Group, many policies
//
// [New] is for one policy. [NewGroup] and [Group.NewLimiter] let several policies share one cache of keys, one queue
// of calls to each Redis node and one set of goroutines.
//
// [All] joins keys of several policies that one request needs together: all of them admit it, or none. Limits
// may differ by key ([Policy].PerKey) and change while the service runs ([Limiter.SetPolicy]).
//
// # Beside this package
//
// Package remote says what Redis must be, and has an in-memory store. tiered/httplimit is the middleware for net/http,
// tiered/tieredtest makes limiters for the tests of a service, tiered/policyfile reads policies from a file, and
// tiered/metrics lists all figures for exporters. contrib/ has modules for gRPC, Prometheus, OpenTelemetry and web
// frameworks.
package tiered
