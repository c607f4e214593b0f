// Package legal plays the shipped library, whole, with policies drawn from everything that validation accepts.
//
// Package adversary owns each message between one bucket and its store, for a few fixed policies. What lies above,
// package tiered, composes policies, changes them, and decides over several keys at once: that is played here. A [Plan]
// follows from a seed alone: some processes, their policies and options, and what happens, step by step. It is played
// in a testing/synctest bubble over a [Bank], a store that a network of ours disturbs: it delays, loses and repeats
// messages, and it may be down.
//
// What must hold, always:
//
//   - Over. What Redis' tokens admitted, less what was given back, fits an ideal bucket, each fixed window and each sliding
//     interval of the largest limit in force. What a fail mode admits is not counted. A step ahead of the store's clock and a
//     lost bucket have the price that docs/proof.md names; nothing else has one.
//   - Under. While nothing is wrong with the network, what nobody used and no figure calls burnt is there in the end.
//   - Health. The store refuses no call, and every reply has its shape. A store that is well decides: no fail mode does.
//   - Recovery. 20 s after everything is well again the store decides every key, Reset fills its bucket, Close returns, and
//     each ledger balances.
//   - Loss. No process misses a bucket that was not lost, but where another filled it: see process.alarm.
//
// The seed gives the plan, byte for byte. What breaks is shown as the shortest plan that [Shrink] finds and that still
// breaks it.
package legal
