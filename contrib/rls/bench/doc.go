// Package bench runs this rate limit service and envoyproxy/ratelimit side by side: the same
// configuration, a Redis each, the same calls, on the same machine. `make rls-bench` prints the
// lines.
//
// theirs is a module of its own, which pins envoyproxy/ratelimit and what it needs.
package bench
