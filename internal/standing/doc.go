// Package standing is a process' part of the limits that are split for good between Redis and the
// processes: the standing shares. They decide over rarely used keys without Redis.
//
// A limit of b tokens at rate r is split into a bucket in Redis of b − R tokens at rate 7r/8, and
// standing shares of R = b/8 tokens at rate r/8 in all processes together. A process that leases
// the fraction f of them may admit f·R tokens of each key at once, and f·r/8 from then on. The
// fractions of all processes sum to at most 1, so the two parts together never admit more than b +
// r·t in any interval t (see docs/internals/proof.md). Each of several limits of a key is split by
// itself, and a request takes its tokens from the share of each.
//
// [Shares] has three parts, a file for each: the fraction over time, the places where each key's
// use is kept, and the member that leases the fraction by polls. There is no I/O and no clock: the
// caller carries polls to the table in Redis and brings the replies. All times are the process'
// own, since a fixed instant, and never fall.
package standing
