//go:build race

package tiered_test

// underRace: the race detector makes sync.Pool forget at random, so allocations cannot be counted.
const underRace = true
