// Package legal plays the whole shipped library with policies drawn from everything that validation
// accepts.
//
// Package adversary controls each message between one bucket and its store, for a few fixed
// policies. Package tiered, above it, composes policies, changes them, and decides over several
// keys at once. That is played here. A [Plan] follows from a seed alone: some processes, their
// policies and options, the nodes of the store, and the steps. It is played in a testing/synctest
// bubble over a [Backend]. A network in between delays, loses and repeats messages, and the store
// may be down.
//
// These properties always hold:
//
//   - Over. What Redis' tokens admitted, less what was given back, fits an ideal bucket, each fixed
//     window and each sliding interval of the largest limit in force. What a fail mode admits is
//     not counted. A step ahead of the store's clock and a lost bucket have the price that
//     docs/internals/proof.md names. Nothing else has a price.
//   - Fallback. What fail-local admits in a process fits an ideal bucket of the process' fallback:
//     the limit divided by the processes that it was told of. In a calm plan it is told of all, so
//     all fallbacks together fit the limit. No mode but the policy's own decides, so fail-closed
//     admits nothing.
//   - Late. No request takes longer than Budget, and each ends before the deadline of its context.
//   - Under. If the network is not disturbed, tokens that were neither used nor counted as burnt
//     are there in the end. Two callers of one key with different limits get nearly all that the
//     larger one brings: see process.alternate.
//   - Health. The store refuses no call, and every reply has its shape. While the store works, it
//     decides, and no fail mode does.
//   - Late answers. A store that answers after more than Timeout and in less than a second decides
//     nearly all, some seconds after it became slow, where a key is leased: see process.steady.
//   - Pauses. A store that stood still decides again with its first answer: see process.pause.
//   - Recovery. 20 s after the last disturbance the store decides every key, all breakers are
//     closed, Reset fills its bucket, Close returns, and each ledger balances.
//   - Shares. Standing shares are in use 70 s after the start, and 80 s after the last disturbance.
//   - Places. Of one key no more requests run than it has places, in processes that are heard of in
//     time, if the policy fails closed. In the end each process gets all of them.
//   - Loss. No process reports the loss of a bucket that was not lost, unless another process
//     filled it: see process.alarm.
//
// A seed gives the same plan, byte for byte. A failure is shown as the shortest plan that
// proof.Shortest finds and that still fails.
package legal
