//go:build !race

package tiered

const underRace = false
