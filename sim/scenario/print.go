package scenario

import (
	"fmt"
	"strconv"
	"strings"
)

// String is s in its canonical form: statements in one order, parameters in that of their table, nothing that says no
// more than the default. For a valid s it parses to the same.
func (s *Scenario) String() string {
	var b strings.Builder
	line := func(statement, rest string) { fmt.Fprintf(&b, "%-9s %s\n", statement, rest) }
	for i := range statements {
		switch st := &statements[i]; st.name {
		case "name":
			line(st.name, strconv.Quote(s.Name))
		case "learn":
			if s.Learn != "" {
				line(st.name, strconv.Quote(s.Learn))
			}
		case "at":
			for i := range s.Faults {
				line("at "+s.Faults[i].At.String(), s.Faults[i].String())
			}
		case "sometimes":
			if len(s.Sometimes) > 0 {
				line(st.name, strings.Join(names(s.Sometimes, quoted), " "))
			}
		case "sweep":
			for _, a := range s.Sweep {
				line(st.name, quoted(a.Path)+"="+strings.Join(names(a.Values, quoted), ","))
			}
		default:
			for _, item := range st.items(s) {
				if text := st.text(item, 0); text != "" || st.name == "fleet" {
					line(st.name, text)
				}
			}
		}
	}
	return b.String()
}

// String is f as text has it after at and the time: "blackhole for=15s".
func (f *Fault) String() string { return find("at").text(f, 1) }

// String is e as text has it after expect: "decide_p99 <= 1ms after=20s".
func (e *Expectation) String() string { return find("expect").text(e, 0) }

// quoted is a value as text has it: in quotes where it needs them.
func quoted(s string) string {
	if plain(s) {
		return s
	}
	return strconv.Quote(s)
}
