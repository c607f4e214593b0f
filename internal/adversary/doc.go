// Package adversary owns every message between processes and their store, and does to them what a network, a scheduler
// and an unlucky day can do: it delays, repeats, reorders and loses requests and replies, crashes and pauses processes,
// evicts their keys, cancels and corrects what was admitted, and sets clocks.
//
// The processes are the shipped state machines (package local), the store is Memory, the script in miniredis or the script
// in a real redis-server (package remote). The adversary asks package invariant, at each call and after every step:
//
//   - what a call did to a token bucket, or to several: level + escrow ≤ burst, and no token appears or disappears;
//   - what a process says with each call, beside what it said and accepted before;
//   - what a process can still spend: it is covered by its record, and its time is not over;
//   - the ledger of every local bucket: granted = spent + returned + burnt + held.
//
// Only the adversary knows what the replies brought that a process accepted, and what it admitted: it holds the ledger against
// that, and what a window counts against what was admitted.
//
// At the end everybody goes home over a healthy network: every bucket must close, everything that a lease held must be
// free again, and no token may be missing from the books. The admissions, net of refunds, must fit into one ideal bucket.
//
// A [World] is driven by choices, one byte a step: by every sequence of them up to a length ([Walk]), by random ones
// ([Play]), or by a fuzzer. Whatever breaks is shown as the shortest schedule that still does ([Shrink]).
package adversary
