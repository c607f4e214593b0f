package measure

import (
	"slices"
	"strings"
)

// Levels of a sparkline, the lowest first: none at all has one of its own.
var (
	blocks = []rune(" ▁▂▃▄▅▆▇█")
	ascii  = []rune(" .:-=+*%@")
)

// timeline writes the run over time, a line per figure, with the faults marked below.
func (t *text) timeline(r *Report) {
	s := &r.Series
	n := len(s.Offered)
	if n == 0 || len(s.Admitted) != n || len(s.Ideal) != n || len(s.Open) != n || len(s.Calls) != n {
		return
	}
	length := float64(n) * s.StepS
	columns := min(t.o.Width, n)
	marks := faultMarks(r.Faults, length, columns)
	offered, admitted, ideal := columnsOf(s.Offered, columns), columnsOf(s.Admitted, columns),
		columnsOf(s.Ideal, columns)
	top := max(slices.Max(offered), slices.Max(admitted), slices.Max(ideal))

	t.line("")
	rates := func(name string, values []float64, top float64) {
		t.line("%s, up to %s/s", name, short(slices.Max(values)))
		t.spark(values, top, marks)
	}
	rates("offered", offered, top)
	rates("admitted", admitted, top)
	rates("ideal", ideal, top)
	if open := columnsOf(s.Open, columns); slices.Max(open) > 0 {
		t.line("breakers open, up to %s", percent(slices.Max(open)))
		t.spark(open, 1, marks)
	}
	calls := columnsOf(s.Calls, columns)
	rates("Redis calls", calls, slices.Max(calls))
	if slices.Contains(marks, true) {
		mark := "░"
		if t.o.ASCII {
			mark = "#"
		}
		under := ""
		for _, m := range marks {
			under += map[bool]string{true: mark, false: " "}[m]
		}
		t.line("%s", strings.TrimRight(under, " "))
	}
	t.line("0s%*s", columns-2, lasting(length))
}

// spark writes a sparkline of values from 0 to top. Faults are shaded if there are colors.
func (t *text) spark(values []float64, top float64, marks []bool) {
	levels := blocks
	if t.o.ASCII {
		levels = ascii
	}
	shaded := false
	for i, v := range values {
		if t.o.Color && marks[i] != shaded {
			shaded = marks[i]
			t.b.WriteString(map[bool]string{true: "\x1b[48;5;52m", false: "\x1b[0m"}[shaded])
		}
		t.b.WriteRune(levels[level(v, top, len(levels))])
	}
	if shaded {
		t.b.WriteString("\x1b[0m")
	}
	t.b.WriteByte('\n')
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

// faultMarks returns in which columns there was a fault. One without length has one column.
func faultMarks(faults []FaultSpan, length float64, columns int) []bool {
	marks := make([]bool, columns)
	for _, f := range faults {
		from := int(f.FromS / length * float64(columns))
		to := int(f.ToS/length*float64(columns) - 1e-9)
		for i := max(from, 0); i <= max(from, to) && i < columns; i++ {
			marks[i] = true
		}
	}
	return marks
}
