package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table prints results in the order of the mutants, each as soon as all before it are known.
type table struct {
	out     io.Writer
	width   int // of the longest name
	pending map[int]result
	next    int
	caught  int
	theme   string
}

const (
	arrow = " → "

	// byColumn is wide enough for most names of tests; the others are cut.
	byColumn = 72
)

func newTable(out io.Writer, mutants []mutant) *table {
	t := &table{out: out, pending: map[int]result{}}
	for _, m := range mutants {
		t.width = max(t.width, utf8.RuneCountInString(m.name))
	}
	t.row("mutant", "caught by", "after n schedules")
	return t
}

// add takes the result of the i-th mutant.
func (t *table) add(i int, r result) {
	t.pending[i] = r
	for {
		r, ok := t.pending[t.next]
		if !ok {
			return
		}
		delete(t.pending, t.next)
		t.next++
		if r.theme != t.theme {
			t.theme = r.theme
			fmt.Fprintf(t.out, "%s:\n", t.theme)
		}
		if r.caught() {
			t.caught++
		}
		name := "  " + r.name
		for _, c := range r.catches() {
			t.row(name, c.by, c.after)
			name = ""
		}
	}
}

func (t *table) row(name, by, after string) {
	fmt.Fprintf(t.out, "%s%s%s%s%s\n", fit(name, t.width+2), arrow, fit(by, byColumn), arrow, after)
}

// fit makes s so many characters wide; %-*.*s counts bytes where it pads.
func fit(s string, width int) string {
	r := []rune(s)
	if len(r) > width {
		return string(r[:width-1]) + "…"
	}
	return s + strings.Repeat(" ", width-len(r))
}

// catch is a test that noticed, and how much of it that took.
type catch struct{ by, after string }

// catches says which tests noticed and how soon, or why that is not so.
func (r *result) catches() (all []catch) {
	if r.err != nil {
		line, _, _ := strings.Cut(r.err.Error(), "\n")
		return []catch{{"ERROR " + line, "-"}}
	}
	for i, v := range r.verdicts {
		if !r.noticed(v) {
			return []catch{{fmt.Sprintf("SURVIVED %v", r.tests[i]), "-"}}
		}
		c := catch{r.tests[i].dir + " " + v.test, "-"}
		if v.way != fails {
			c.by += " (" + string(v.way) + ")"
		}
		if v.after != "" {
			c.after = "after " + v.after
		}
		all = append(all, c)
	}
	return all
}
