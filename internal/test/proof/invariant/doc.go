// Package invariant states what must hold between a store and its processes. It looks at what can
// be observed: the fields that the store keeps, the calls and replies that pass, and the figures
// that a process reports.
//
//   - [Exchange]: what one call did to a token bucket. Time, records, levels, debt and grant each
//     have a law. Together they say that no token appears and none disappears.
//   - [Bucket]: what a stored bucket must say of itself at any time: level + escrow ≤ burst, and
//     the records add up.
//   - [Caller] and [Holds]: what a process says with its calls.
//   - [Covered]: what a process can spend is on record for it in the store.
//   - [Told]: when a caller is told to come back.
//   - [Ledger]: what a process did with the tokens that it was granted.
//
// The adversary and the tests on a real Redis ask it. It imports neither package local nor package
// remote, because a judge must not share the defendant's code. From package lua it takes the types
// of the protocol only.
//
// Package ideal says how many tokens a stream of requests may admit.
package invariant
