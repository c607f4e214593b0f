//go:build race

package sim

// underRace is set when the race detector slows everything down.
const underRace = true
