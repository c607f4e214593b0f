// Package measure turns what happened in a rehearsal into a report: it is told of every request, decision, call, change of a
// breaker and fault, by whichever engine runs, and reckons the metrics of package scenario exactly as they are defined there.
//
// A [Meter] costs some hundred nanoseconds per request and memory per key, not per request. It knows no clock: whoever tells
// it something says when that was, as time since the beginning of the run. Times of requests must not go back.
package measure
