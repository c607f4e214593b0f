// Package ratio is the lines of `make ratios`: what this project claims about its speed, each
// measured against something in the same run and held to a bound. A line whose value depends on the
// machine has no bound.
package ratio

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Line is one claim: its Value must not lie beyond its Bound.
type Line struct {
	Name  string
	Value float64
	Least bool // the bound is the least that will do, not the most
	Bound float64
}

// NoBound is the Bound of a line that is only told. It still misses if nothing was measured.
var NoBound = math.Inf(1)

const noBound = "no bound"

// Holds reports whether the claim is true.
func (l Line) Holds() bool {
	if l.Least {
		return l.Value >= l.Bound
	}
	return l.Value <= l.Bound
}

// String is the line: name, value, bound and verdict (ok or MISS), separated by tabs.
func (l Line) String() string {
	bound, verdict := "<= "+short(l.Bound), "MISS"
	switch {
	case l.Least:
		bound = ">= " + short(l.Bound)
	case l.Bound == NoBound:
		bound = noBound
	}
	if l.Holds() {
		verdict = "ok"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s", l.Name, short(l.Value), bound, verdict)
}

// Parse reads a line as String writes it. What holds is judged again, by the value and bound that
// it shows; a line whose verdict contradicts them (a value rounded onto its bound) is no less of a
// MISS.
func Parse(text string) (l Line, ok bool) {
	fields := strings.Split(text, "\t")
	if len(fields) != 4 || fields[0] == "" {
		return Line{}, false
	}
	if fields[2] == noBound {
		fields[2] = "<= +Inf"
	}
	sign, bound, ok := strings.Cut(fields[2], " ")
	value, err := strconv.ParseFloat(fields[1], 64)
	if !ok || err != nil || sign != "<=" && sign != ">=" {
		return Line{}, false
	}
	l = Line{Name: fields[0], Value: value, Least: sign == ">="}
	if l.Bound, err = strconv.ParseFloat(bound, 64); err != nil {
		return Line{}, false
	}
	switch fields[3] {
	case "ok":
	case "MISS":
		if l.Holds() {
			l.Value = math.NaN()
		}
	default:
		return Line{}, false
	}
	return l, true
}

// Median returns the middle value, or the mean of the two in the middle. It panics if there is
// none.
func Median(xs []float64) float64 {
	xs = slices.Sorted(slices.Values(xs))
	n := len(xs)
	return (xs[(n-1)/2] + xs[n/2]) / 2
}

// short has four digits, which is more than any timing deserves.
func short(x float64) string {
	if x >= 1000 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}
