// Package answers judges what callers are told, by random uses of the whole library.
//
// Package legal judges what is admitted. Here a [Sequence] follows from a seed: some processes on
// one store in memory, their policies, and steps, each a use of the API. It is played in a
// testing/synctest bubble, and calls to the store take no time, so an answer is right to the
// microsecond. The judges are
//
//   - retry: a client that is alone with its key, and comes back exactly when it was told, with the
//     same cost, is admitted, or looks with Peek and may. It is alone if no other process holds
//     tokens. Limits may change meanwhile, and it may be told in a crowd of other costs.
//   - early: one that comes back a step earlier is not: a token's time, an entry of a log or a
//     window, a block.
//   - leased: where others hold tokens, one that comes back each time it is told is admitted before
//     the refill and the longest lease are over.
//   - fallback: the same as retry, for a fallback in an outage.
//   - peek: Peek and then Allow in the same instant, alone, say the same, and one cost less
//     remains. outage: the same while the store is down.
//   - each: PeekEach says for its tightest limit what Peek says.
//   - charge: what was charged counts for what a process knows of the key at once.
//   - range: remaining is between 0 and burst, less than a cost that was refused, and reset is not
//     before retry.
//   - stats: the figures are the sum of what was observed, by reason and by tier, in requests and
//     in tokens.
//   - late: no call takes longer than its Budgets or its context. close: the same of Close, and it
//     succeeds while the store works.
//
// A sequence that fails is shown as the shortest one that still fails, as a test of package
// tiered_test.
package answers
