// Package engines plays the whole library of scenarios on the simulator's three engines, and compares: a Redis in Go, the
// scripts in miniredis, and a redis-server with real processes. `make engines` writes docs/engines.md.
package engines
