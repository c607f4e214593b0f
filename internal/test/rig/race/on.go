//go:build race

package race

// On tells whether the race detector watches. It makes sync.Pool forget at random, so allocations
// cannot be counted.
const On = true
