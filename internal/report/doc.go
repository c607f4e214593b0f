// Package report observes a limiter: counters, log lines, calls of hooks and the keys that are
// refused most. None of it may delay a decision, so each is bounded, and has a lock of its own or
// none. It knows no policy, no limiter and no decision: package tiered tells it what happened, and
// makes the API's figures of what it keeps.
package report
