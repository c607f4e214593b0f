package scenario

import (
	"fmt"
	"strconv"
	"strings"
)

// String is s in its canonical form: statements in one order, parameters in that of their table, nothing that says no more
// than the default. For a valid s it parses to the same.
func (s *Scenario) String() string {
	p := printer{}
	p.line("name", strconv.Quote(s.Name))
	if s.Learn != "" {
		p.line("learn", strconv.Quote(s.Learn))
	}
	for i := range s.Limits {
		p.line("limit", word(s.Limits[i].Name)+params(&s.Limits[i], limitFields))
	}
	p.line("fleet", strings.TrimSpace(params(&s.Fleet, fleetFields)))
	for i := range s.Traffic {
		p.line("traffic", word(s.Traffic[i].Shape)+params(&s.Traffic[i], trafficFields))
	}
	if s.Net != (Net{}) {
		p.line("net", strings.TrimSpace(params(&s.Net, netFields)))
	}
	for i := range s.Faults {
		p.line("at "+s.Faults[i].At.String(), s.Faults[i].String())
	}
	p.line("run", s.Length.String()+params(s, runFields))
	for i := range s.Expect {
		p.line("expect", s.Expect[i].String())
	}
	if len(s.Sometimes) > 0 {
		p.line("sometimes", strings.Join(words(s.Sometimes), " "))
	}
	for _, a := range s.Sweep {
		p.line("sweep", word(a.Path)+"="+strings.Join(words(a.Values), ","))
	}
	return p.String()
}

// String is f as text has it after at and the time: "blackhole for=15s".
func (f *Fault) String() string { return word(f.Kind) + params(f, faultFields) }

// String is e as text has it after expect: "decide_p99 <= 1ms after=20s".
func (e *Expectation) String() string {
	value := formatNumber(e.Value, 0)
	if m, ok := metric(e.Metric); ok {
		value = m.Unit.Format(e.Value)
	}
	return word(e.Metric) + " " + word(e.Op) + " " + value + params(e, expectFields)
}

type printer struct{ strings.Builder }

// line writes a statement with its word as wide as the longest.
func (p *printer) line(statement, rest string) { fmt.Fprintf(p, "%-9s %s\n", statement, rest) }

// params writes those that are not as if left out, each with a blank before it.
func params[T any](t *T, fields []field[T]) string {
	var b strings.Builder
	for i := range fields {
		if p := fields[i].at(t); !isZero(p) {
			b.WriteString(" " + fields[i].name + "=" + word(fields[i].span.format(p)))
		}
	}
	return b.String()
}

// word is a value as text has it: in quotes where it needs them.
func word(s string) string {
	if plain(s) {
		return s
	}
	return strconv.Quote(s)
}

func words(all []string) []string {
	written := make([]string, len(all))
	for i, s := range all {
		written[i] = word(s)
	}
	return written
}
