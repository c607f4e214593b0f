// Package misspelled finds the word that somebody meant.
package misspelled

import "strings"

// Meant returns the first word of the list with the fewest edits from word: at most two, or one for
// a word of two to four letters. It is empty if there is none.
func Meant(word string, list []string) (near string) {
	best := 3
	for _, w := range list {
		d := edits(strings.ToLower(word), strings.ToLower(w), best)
		if d < best && d <= len(w)/2 && (d < 2 || len(w) > 4) {
			near, best = w, d
		}
	}
	return near
}

// edits returns how many bytes must be inserted, deleted, changed, or swapped with their neighbor
// to make b of a. It returns enough if the lengths alone require as many.
func edits(a, b string, enough int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= enough {
		return enough
	}
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
		for j := range table[i] {
			switch {
			case i == 0 || j == 0:
				table[i][j] = i + j
			case a[i-1] == b[j-1]:
				table[i][j] = table[i-1][j-1]
			default:
				table[i][j] = 1 + min(table[i-1][j-1], table[i-1][j], table[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				table[i][j] = min(table[i][j], table[i-2][j-2]+1)
			}
		}
	}
	return table[len(a)][len(b)]
}
