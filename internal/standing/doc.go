// Package standing is a process' part of the limits that are split for good between Redis and the
// processes: the standing shares. They decide over rarely used keys without Redis.
//
// A limit of b tokens at rate r is split by a fraction φ: a bucket in Redis has b − R tokens and
// the rate (1 − φ)·r, and the standing shares have R = φ·b tokens and φ·r in all processes
// together. A process that leases the fraction f of them may admit f·R tokens of each key at once,
// and f·φ·r from then on. The fractions of all processes sum to at most 1, so the two parts
// together never admit more than b + r·t in any interval t (see docs/internals/proof.md). Each of
// several limits of a key is split by itself, and a request takes its tokens from the share of
// each.
//
// Of a fixed window of L tokens Redis has L − R, and the shares R = φ·L. A window counts until it
// ends, so it keeps the split that it began with ([Parts]), and a process uses in it the least
// fraction that it had since.
//
// [Shares] has three parts, a file for each: the fraction over time, the places where each key's
// use is kept, and the member that leases the fraction by polls. An [Agreement] is how processes
// come to split a limit alike. There is no I/O and no clock: the caller carries polls to the table
// in Redis and brings the replies. All times are the process' own, since a fixed instant, and never
// fall.
package standing
