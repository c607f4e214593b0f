package measure

import (
	"slices"
	"strings"
)

// blocks are the levels of a sparkline, the lowest first: none at all has one of its own.
var blocks = []rune(" ▁▂▃▄▅▆▇█")

// mostColumns is the width of the timeline.
const mostColumns = 72

// timeline writes the run over time, a line per figure, with the faults marked below.
func (t *text) timeline(r *Report) {
	s := &r.Series
	n := len(s.Offered)
	if n == 0 || len(s.Admitted) != n || len(s.Open) != n || len(s.Calls) != n {
		return
	}
	columns := min(mostColumns, n)
	offered, admitted, calls := columnsOf(s.Offered, columns), columnsOf(s.Admitted, columns), columnsOf(s.Calls, columns)
	top := max(slices.Max(offered), slices.Max(admitted))
	rates := func(name string, values []float64, top float64) {
		t.line("%s, up to %s/s\n%s", name, short(slices.Max(values)), spark(values, top))
	}
	t.line("")
	rates("offered", offered, top)
	rates("admitted", admitted, top)
	if open := columnsOf(s.Open, columns); slices.Max(open) > 0 {
		t.line("breakers open, up to %s\n%s", percent(slices.Max(open)), spark(open, 1))
	}
	rates("Redis calls", calls, slices.Max(calls))
	length := float64(n) * s.StepS
	if marks := faultMarks(r.Faults, length, columns); marks != "" {
		t.line("%s", marks)
	}
	t.line("0s%*s", columns-2, lasting(length))
}

// spark returns a sparkline of values from 0 to top.
func spark(values []float64, top float64) string {
	line := make([]rune, len(values))
	for i, v := range values {
		line[i] = blocks[level(v, top, len(blocks))]
	}
	return string(line)
}

// level returns which of n levels a value has. Only 0 has the lowest; the top has the highest.
func level(v, top float64, n int) int {
	if v <= 0 || top <= 0 {
		return 0
	}
	return min(1+int(v/top*float64(n-1)*0.999999), n-1)
}

// columnsOf averages values into fewer columns.
func columnsOf(values []float64, columns int) []float64 {
	out := make([]float64, columns)
	for i := range out {
		part := values[i*len(values)/columns : (i+1)*len(values)/columns]
		for _, v := range part {
			out[i] += max(v, 0) / float64(len(part))
		}
	}
	return out
}

// faultMarks marks the columns in which there was a fault. One without length has one column.
func faultMarks(faults []FaultSpan, length float64, columns int) string {
	marks := slices.Repeat([]rune{' '}, columns)
	for _, f := range faults {
		from := int(f.FromS / length * float64(columns))
		to := int(f.ToS/length*float64(columns) - 1e-9)
		for i := max(from, 0); i <= max(from, to) && i < columns; i++ {
			marks[i] = '░'
		}
	}
	return strings.TrimRight(string(marks), " ")
}
