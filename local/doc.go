// Package local is the per-process tier: a bounded [Cache] of [Bucket]s, each the process' side of one bucket in Redis.
//
// A Bucket holds a lease (a pot of tokens with a deadline, which the hot path decrements), remembers what is known to be
// denied until when, keeps the line of those who wait for a reply, estimates demand, decides when to ask for how much,
// and keeps the share: what this process may admit when it is alone.
//
// Everything here is a state machine: no goroutine, no I/O, no clock. Time comes in as now, the duration since a base that
// the owner fixed once; randomness comes in through [Policy]. The owner (package tiered) carries out the effects that the
// methods report: send a call, look again at some time.
//
// # One call at a time
//
// A Bucket has at most one call under way. The owner puts the bucket into a queue when an [Effect] says Send; when the
// queue's turn comes, [Bucket.Begin] says what to send, as of that moment; the call then ends with exactly one of
// [Bucket.Accept], [Bucket.Late] and [Bucket.Fail]. Anything that comes after that for the same call is ignored.
//
// # Locking
//
// [Cache.Hot] takes no lock; [Cache.Get], [Bucket.Take] and [Bucket.Refuse] take none, most often, and neither does [Bucket.Alone]
// where admissions only have to be counted. All other methods take the bucket's mutex, never for longer than a walk through its line, and never
// across anything that blocks.
package local
