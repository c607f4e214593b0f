// Package ideal is the yardstick: what one ideal limiter admits, and by how much a stream of
// admissions exceeds it.
//
// A bucket's bound has one shape: in any interval [s,t] at most burst + rate·(t−s) tokens. Three
// tools measure it:
//
//   - [Bucket] decides as one central bucket would, free of latency. What it admits of the requests
//     offered is what a limiter's utilisation is compared with.
//   - [Policer] watches admissions whose instants are known, as in a simulation, at a constant cost
//     per event.
//   - [Worst] judges admissions of which only the times before and after the call are known, as in
//     a test of a running program, in O(n log n). It accuses only where an admission lies in the
//     interval whatever its true instant was.
//
// [Window] and [Log] are all of this for the quota of each window, and of any interval of a length.
// They count tokens, and accuse only where an admission is in the window whatever its true instant.
//
// # Arithmetic
//
// A bucket is tokens per period and a burst; times are nanoseconds since any one base. All three
// reckon in units of token/period (one token is period units, one nanosecond refills tokens units),
// in whole numbers of 128 bits. So nothing is rounded: one token too many is found after any length
// of time, and a stream at the very edge is never accused. Only the figures of an [Excess] are
// floats; the sign of its Over is exact.
//
// A limiter under test may round: a level kept as a double, a clock of whole microseconds. How much
// of that to forgive is the caller's to say, by comparing Over with a tolerance that has a reason.
//
// No type here is safe for concurrent use. Arguments that make no sense (a period of zero, times
// that go back) panic: a yardstick that measures them silently proves nothing.
package ideal
