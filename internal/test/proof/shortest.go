// Package proof has what the random proofs below it share.
package proof

import "slices"

// Shortest leaves out of a list what it can, as long as the list is still broken: all of it first, then parts of half of
// what is left, then smaller ones.
func Shortest[T any](list []T, broken func([]T) bool) []T {
	for size := len(list); size > 0; {
		smaller := false
		for at := 0; at+size <= len(list); {
			if without := slices.Concat(list[:at], list[at+size:]); broken(without) {
				list, smaller = without, true
			} else {
				at += size
			}
		}
		if !smaller || size > len(list)/2 {
			size /= 2
		}
	}
	return list
}
