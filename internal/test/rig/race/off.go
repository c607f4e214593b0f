//go:build !race

// Package race tells tests whether the race detector watches.
package race

// On tells whether the race detector watches. It makes sync.Pool forget at random, so allocations
// cannot be counted.
const On = false
