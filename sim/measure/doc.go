// Package measure turns what happened in a run into a [Report]. The simulator tells a [Meter] of
// every request, decision, call, grant, breaker and fault. The Meter computes the metrics that
// sim/report.md defines.
//
// A Meter has no clock. Each call has its time, since the beginning of the run.
//
// A request counts in the part of the run in which it was made. Over-admission counts when the
// decision was made, because it is about intervals. A part begins at its first instant and ends
// before its last. What comes after the end of the run belongs to the last part.
//
// The ideal is one limiter per key, of package ideal: of several limits each must have the tokens.
// It gets the same requests from the beginning of the run on, the warm-up included.
//
// A value that is not known is −1, such as the time to heal if no breaker opened. It does not meet
// an expectation, because the run shows nothing about it.
package measure
