package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is one thing that is wrong with a scenario. Text has Line and Column; JSON and a scenario made in Go have Path.
type Error struct {
	Line   int // from 1; 0 when there is no text
	Column int // from 1, in characters; a tab is one
	// of the field, as in faults[1].for; empty for what is no field: a line that says nothing, broken JSON
	Path string
	Text string // field, value and rule: "n is 0: must be 1 to 5000"
}

// Error returns the place, if it is known, and the text: "3:9: n is 0: must be 1 to 5000", "fleet.n is 0: …".
func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Text)
	}
	return e.Text
}

// Errors are all that is wrong with a scenario, from its beginning to its end. It is what [Parse], [ParseJSON] and
// [Scenario.Validate] return, never empty; errors.As finds each [*Error] in it.
type Errors []*Error

// Error returns them a line each.
func (all Errors) Error() string {
	lines := make([]string, len(all))
	for i, e := range all {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap is for errors.Is and errors.As.
func (all Errors) Unwrap() []error {
	errs := make([]error, len(all))
	for i, e := range all {
		errs[i] = e
	}
	return errs
}

// sorted returns all in the order of the text.
func (all Errors) sorted() Errors {
	slices.SortStableFunc(all, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return all
}

// says returns the text of an error.
func says(field, value, rule string) string { return field + " is " + value + ": " + rule }

// place is where something is, as in an [Error].
type place struct{ line, column int }

// atMost returns an error at the place if there are more than so many.
func (p place) atMost(what string, n int, unit string, most int) error {
	if n <= most {
		return nil
	}
	text := says(what, fmt.Sprintf("%d %s", n, unit), fmt.Sprintf("must be at most %d", most))
	return Errors{{p.line, p.column, "", text}}
}

const (
	missing = "missing" // the value of what is not there
	unknown = "unknown" // the value of what no list has
	shown   = 40        // characters of a value in an error
)

// show is a value as errors have it: as it was written, if that is a plain word, else quoted; cut if it is long.
func show(text string) string {
	cut := ""
	if utf8.RuneCountInString(text) > shown {
		text, cut = string([]rune(text)[:shown]), "…"
	}
	if plain(text) {
		return text + cut
	}
	return strconv.Quote(text) + cut
}

// showRaw is show for a value that may be in quotes already.
func showRaw(text string) string {
	if strings.HasPrefix(text, `"`) && len(text) <= shown && isText(text, 0, shown) {
		return text
	}
	return show(text)
}

// plain reports whether text needs no quotes as a value: it has only ASCII letters, digits, and characters of numbers.
func plain(text string) bool {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("_.%/+-:<>=", c) >= 0:
		default:
			return false
		}
	}
	return text != ""
}

// oneOf is the rule of a word that must be in a list. If word looks like a slip, it names the likeliest one.
func oneOf(word string, list []string) string {
	return "must be one of " + strings.Join(list, ", ") + meant(word, list)
}

// meant asks back if a word of the list is at most two letters away: "; did you mean kill?"
func meant(word string, list []string) string {
	if near := Nearest(word, list); near != "" {
		return "; did you mean " + show(near) + "?"
	}
	return ""
}

// Nearest returns the first word of the list with the fewest edits from word: at most two, or one for a word of two to
// four letters. It is empty if there is none.
func Nearest(word string, list []string) (near string) {
	best := 3
	for _, w := range list {
		d := edits(strings.ToLower(word), strings.ToLower(w), best)
		if d < best && d <= len(w)/2 && (d < 2 || len(w) > 4) {
			near, best = w, d
		}
	}
	return near
}

// edits returns how many bytes must be inserted, deleted, changed, or swapped with their neighbor to make b of a. It
// returns enough if the lengths alone require as many.
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
