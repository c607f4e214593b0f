// Package tiered is a rate limiter for services that run as many processes. It keeps one limit for
// all of them, at about the price of a limit in one process.
//
// Each process takes tokens in batches, called leases, from a bucket in Redis, and then decides
// without asking Redis. With any number of processes, in any interval of length t, a key gets at
// most
//
//	burst + rate·t
//
// tokens, as by a single ideal token bucket. This holds while Redis answers and keeps its data.
// What [Limiter.Refund] and [Limiter.Reset] give comes on top, and so does debt that is forgiven
// ([Policy].MaxDebt). The tokens in leases and those in Redis are together never more than the
// burst. Tokens are burnt if the process that holds them dies, or if they are unused when the lease
// ends.
//
//	store, err := remote.Open("redis://127.0.0.1:6379", nil) // or remote.NewRedis, with a client of yours
//	limiter, err := tiered.New(store, tiered.Policy{Name: "per-user", Limit: tiered.PerSecond(100).WithBurst(200)}, nil)
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
// A hot key is decided in the process, without allocation or round trip, because its lease is
// renewed in the background. A rarely used key takes its tokens from Redis at each decision, by one
// round trip, which other waiting calls share. A key that is known to be over its limit is refused
// in the process. A decision waits for Redis for at most [Options].Budget, and is there before the
// deadline of its context.
//
// # When Redis does not answer
//
// A process spends its leases until their deadline, and refuses for up to 5 s the keys that it
// knows to be over their limit. Then the policy's [FailMode] decides. Before that a decision waits
// for at most Options.Budget. It does not wait at all after three failed calls in a row, because
// then a breaker of the Redis node opens. If only the calls of one key fail, Redis is not asked
// about that key for half a second each time. The breaker notices within a second that the node is
// back, or within three if there are no requests, and the request that finds out still goes by the
// FailMode. Then what was admitted without Redis is charged to the bucket, less the refill that a
// full bucket lost. The limiter can start while Redis is down, so set Options.Processes to the
// least number of processes that you run.
//
// # What else there is
//
// A policy can have several limits on each key ([Limit.And]), other limits for some keys (PerKey)
// or plans (Plans), and count in windows (Algorithm). [Limiter.SetPolicy] changes it at run time.
// [All] joins keys of several policies: all of them admit a request, or none. [Limiter.Wait] waits
// for its turn, [Limiter.Reserve] takes tokens that can be returned or corrected, and
// [Limiter.Peek] takes nothing. [Group.Stats] counts, and [Trace] reports each event. [New] is for
// one policy. [NewGroup] and [Group.NewLimiter] let several share what a Group has.
//
// Package remote says what Redis must be, and has an in-memory store. Beside this package are
// tiered/httplimit, the middleware for net/http, tieredtest for the tests of a service, policyfile,
// which reads policies, and metrics for exporters. contrib/ has modules for gRPC, Prometheus,
// OpenTelemetry and web frameworks. These are promised to stay (docs/compatibility.md). Packages
// local, lua and failover are not: they can be imported, and follow this one.
package tiered
