// Package adversary tries every order of messages, losses and crashes on one bucket. It owns every
// message between the processes and their store. It delays, repeats, reorders and loses requests
// and replies, crashes and pauses processes, evicts their keys, cancels and corrects what was
// admitted, and sets clocks.
//
// The processes are the shipped state machines (package local), the store is Memory, the script in
// miniredis or the script in a real redis-server (package remote). The adversary asks package
// invariant, at each call and after every step:
//
//   - what a call did to a token bucket, or to several: level + escrow ≤ burst, and no token
//     appears or disappears;
//   - what a process states in each call, compared with what it stated and accepted before;
//   - what a process can still spend: it is covered by its record, and its lease has not ended;
//   - the ledger of every local bucket: granted = spent + returned + burnt + held.
//
// Only the adversary knows what the accepted replies brought and what was admitted. It compares the
// ledger with that, and what a window counts with what was admitted.
//
// At the end all processes shut down over a healthy network. Every bucket must close, everything
// that a lease held must be free again, and every token must be accounted for. The admissions, net
// of refunds, must fit into one ideal bucket, and so must those that were kept, but for what
// refilled into the room of tokens that came back.
//
// A [World] is driven by choices, one number a step: by every sequence of them up to a length
// ([Walk]), by random ones ([Schedule.Play]), or by a fuzzer. A failure is shown as the shortest
// schedule that still fails.
package adversary
