// Package invariant states what must hold between a store and its processes, over what can be observed: the fields that the
// store keeps, the calls and replies that pass, and the figures that a process reports.
//
//   - [Exchange]: what one call did to a token bucket. Time, records, levels, debt and grant each have a law. The sum of all
//     is that no token appears from nowhere and none disappears.
//   - [Bucket]: what a stored bucket must say of itself at any time: level + escrow ≤ burst, and the records add up.
//   - [Ledger]: what a process did with the tokens that it was granted.
//   - [Covered]: what a process can spend, its record in the store covers.
//
// The adversary, the simulator's audit and the tests on a real Redis ask it. So it imports neither package local nor package
// remote: a judge must not share the defendant's code. From package lua it takes the protocol's types only.
//
// How many tokens a stream of requests may admit is the matter of package ideal.
package invariant
