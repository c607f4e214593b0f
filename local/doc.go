// Package local is the process' side of the buckets in Redis: a bounded [Cache] of [Bucket]s.
//
// A Bucket decides about one key of one policy. bucket.go has its data, its lock, and how a step
// ends. Below it are its parts, each with a file and invariants of its own:
//
//   - hot: what decisions read without the bucket's mutex;
//   - view: what this process knows of the bucket in Redis;
//   - denial, with steps: what is known to be refused, and until when;
//   - lease: a pot of the lease's tokens, which the hot path takes from, a ledger of what became of
//     the other tokens that were granted, and an outage: what the fail mode decided, and the debt
//     that results;
//   - window: of a policy that does not just refill, when its tokens were counted and until when
//     they count, whether the lease ends with its window, and what is owed by date. A window that
//     may be over before a reply comes is not leased: see [Policy].ShortWindow;
//   - pending: waiters, who wait for the reply to a call, and the call under way;
//   - demand: an estimate of what is asked for, by which a sizing sizes leases;
//   - fallback: what this process may admit while Redis does not answer.
//
// Above it is what is done with them: books.go (what is counted, given back and owed), ask.go
// (requests, by Redis or by the fail mode), compose.go (the next call), answer.go (what its reply
// changes, or none) and lifecycle.go. No file uses one above it.
//
// Everything here is a state machine without goroutines, I/O or a clock. Time comes in as now, the
// duration since a base that the owner has fixed once. Randomness comes in through [Policy]. The
// owner (internal/engine) carries out the effects that the methods return: send a call, check again
// at some time. The package composes the calls of package lua. It does not decode replies: lua and
// remote do.
//
// # One call at a time
//
// A Bucket has at most one call under way. The owner puts the bucket into a queue when an [Effect]
// says Send. When the queue's turn comes, [Bucket.Begin] says what to send, as of that moment. The
// call then ends with exactly one of [Bucket.Accept], [Bucket.Late], [Bucket.Rejected] and
// [Bucket.Fail]. Whatever comes after that for the same call is ignored.
//
// # Locking
//
// The exported methods of [Hot] take no lock, nor does [Cache.Hot]. [Cache.Get] mostly takes none.
// All other methods take the bucket's mutex, never for longer than a walk through its waiters, and
// never across anything that blocks.
//
// The package promises no compatibility: it follows internal/engine and tiered.
package local
