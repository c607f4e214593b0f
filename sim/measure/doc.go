// Package measure turns what happened in a run into a report. Each engine reports every request, decision, call, change
// of a breaker and fault to a [Meter], which computes the metrics of package scenario as they are defined there.
//
// A Meter has no clock. Each report has its time, since the beginning of the run.
//
// # What counts where
//
// A request counts where it was made: tokens offered and admitted, the ideal, how long the decision took.
// Over-admission and starvation count where the decision fell, because they are about intervals. A part begins at its
// first instant and ends before its last. What comes after the end of the run belongs to the last part.
//
// The ideal is one [ideal.Bucket] per key, from the beginning of the run on, the warm-up included.
//
//   - shortfall: in each second of a part and for each limit, all keys together, what the ideal admits beyond what was
//     admitted, which is never more than was offered; the sum of it, by all that the ideal admits.
//   - denied_within: a request whose caller left is not refused.
//   - waited: Redis decided, or the decision took longer than 100 µs.
//   - detect: of each process, its first opening from the beginning of a fault to a second after its end; a process that
//     joined later begins when it joined. The metric is the longest.
//   - heal: until all breakers are closed, and none opens within a second of the fault's end. A fault at whose end another
//     one is on has none. The metric is the longest; it is −1 when a fault has not healed.
//   - over_admission: a part that begins with the warm-up has the worst of the intervals that end in it, whenever they began;
//     another one of those that lie within it, so that what a fault cost is not charged to the recovery.
//   - recovered: from the end of the last fault, in steps of 100 ms, until the admitted rate is within 5 % of the ideal and
//     stays so for a second. A rate is that of the next second; of a limit so small that chance alone makes 5 % of a second's tokens
//     and more, that of as long as the ideal takes for 400 tokens, at most 10 s and half of what is left of the part. Where
//     √n of the ideal's n tokens is more than 5 %, that much counts as near: chance alone makes as much.
//   - starved: from when a process, or a key, was first asked since it last admitted something, until it last refused, or to
//     the one decision that it then made late. After a minute without a request the next one begins anew. What began before the part
//     counts from the part's first instant.
//   - jain_keys, least_key: over keys for which the ideal admits something, what was admitted by what the ideal admits, at most 1.
//     With more than 4096 keys one that comes back after its bucket was full again may count as another.
//   - open: breakers that are not closed, by the processes that live.
//   - probes: counted while no fault is on and some breaker is not closed, in a window of 100 ms that slides by 1 ms.
//   - lost, burnt, duplicated, uncounted: from samples of Stats, so that the edges of a part are those of the nearest step. A
//     part that begins with the warm-up counts them from the beginning of the run. In the other parts what is under way at
//     the edge counts as lost before it and as found after it. What callers saw against what Stats say is compared when a
//     process ends.
//
// A value that is not known is −1: a quantile of no decisions, a ratio to 0, the time to heal without an open breaker.
// Such a value does not meet an expectation, because the run shows nothing about it.
package measure
