//go:build !race

package tiered_test

const underRace = false
