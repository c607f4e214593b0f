package measure

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// TextOptions say how a report is written for a terminal.
type TextOptions struct {
	Color bool // with ANSI escapes; the caller has checked that it writes to a terminal
}

// String is the report as Text has it, without colors.
func (r *Report) String() string {
	var b strings.Builder
	_ = r.Text(&b, TextOptions{})
	return b.String()
}

// Text writes the report for a terminal: what the faults cost in words, what was run, the metrics of each phase, the
// run over time, the expectations, what happened, and in its last line whether it passed and how to run it again. It
// quotes a user's text that is not plain. It contains no key, because no report does.
func (r *Report) Text(w io.Writer, o TextOptions) error {
	t := &text{o: o}
	t.head(r)
	t.metrics(r)
	t.timeline(r)
	if len(r.Expectations) > 0 {
		t.line("")
	}
	t.outcomes(r, "")
	t.sometimes(r)
	again := fmt.Sprintf("again with --seed %d, or tiersim replay of its JSON", r.Seed)
	if r.Unseed != "" {
		again = fmt.Sprintf("unseed %s; %s", clean(r.Unseed), again)
	}
	t.line("\n%s  %s", t.verdict(r.Passed), again)
	_, err := io.WriteString(w, t.b.String())
	return err
}

// SideBySide writes reports for a terminal: what the faults cost in words, the most telling metrics of each phase with
// a column for each report under its name, and the expectations of each. There must be as many names as reports.
func SideBySide(w io.Writer, names []string, all []*Report, o TextOptions) error {
	t := &text{o: o}
	_ = sentences(&t.b, names, all)
	head := []string{}
	for _, name := range names {
		head = append(head, clean(name))
	}
	for _, name := range []string{"before", "during", "after"} {
		columns, span := make([]*Metrics, len(all)), ""
		for i, r := range all {
			if p := r.phase(name); p != nil {
				columns[i] = &p.Metrics
				span = cmp.Or(span, fmt.Sprintf("\n%s (%s-%s)", name, lasting(p.FromS), lasting(p.ToS)))
			}
		}
		if span != "" {
			t.line("%s", span)
			t.table(head, columns, compared)
		}
	}
	t.line("")
	for i, r := range all {
		t.line("%s  %s: seed %d, unseed %s", t.verdict(r.Passed), clean(names[i]), r.Seed, clean(r.Unseed))
		t.outcomes(r, "  ")
		for _, h := range r.Sometimes {
			if h.Wanted && h.Count == 0 {
				t.line("  %s  sometimes %s: never", t.verdict(false), clean(h.Name))
			}
		}
	}
	_, err := io.WriteString(w, t.b.String())
	return err
}

// compared are the metrics of tables with little room.
var compared = []string{
	"utilisation", "over_admission", "shortfall", "alone", "denied_within", "decide_p99", "decide_max", "redis_calls",
	"detect", "heal",
}

// phase returns the phase of that name, or nil.
func (r *Report) phase(name string) *Phase {
	for i := range r.Phases {
		if r.Phases[i].Name == name {
			return &r.Phases[i]
		}
	}
	return nil
}

// text is a report that is being written.
type text struct {
	o TextOptions
	b strings.Builder
}

func (t *text) line(format string, args ...any) { fmt.Fprintf(&t.b, format+"\n", args...) }

// clean returns a user's text as it is if all of it can be printed, else in quotes. So nothing in it moves a cursor.
func clean(s string) string {
	for _, c := range s {
		if c == utf8.RuneError || !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}

func (t *text) head(r *Report) {
	s := r.Scenario
	if s == nil {
		s = &scenario.Scenario{}
	}
	t.line("%s", clean(cmp.Or(s.Name, "no name")))
	if s.Learn != "" {
		t.line("%s", clean(s.Learn))
	}
	t.line("")
	if len(r.Faults) > 0 {
		_ = sentences(&t.b, []string{s.Name}, []*Report{r})
		t.line("")
	}
	t.line("seed   %d: %s, measured from %s on", r.Seed, s.Length, scenario.Duration(warmUp(s)))
	t.line("fleet  %d processes, fail-%s", s.Fleet.N, clean(cmp.Or(s.Fleet.Mode, "local")))
	for _, l := range s.Limits {
		own := ""
		if mode, ok := r.FailModes[l.Name]; ok {
			own = ", fail-" + clean(mode)
		}
		t.line("limit  %s: %d tokens per %s, burst %d%s", clean(l.Name), l.Tokens, l.Per, cmp.Or(l.Burst, l.Tokens), own)
	}
	for _, f := range r.Faults {
		t.line("fault  %s", clean(f.Text))
	}
	t.line("")
}

// mostLimits is the number of limits that have a column each: more are too wide for a terminal.
const mostLimits = 4

// metrics writes a table: a line for each known metric, a column for each phase, for the whole run, and for each limit
// if there are several.
func (t *text) metrics(r *Report) {
	var columns []*Metrics
	var head []string
	for i := range r.Phases {
		p := &r.Phases[i]
		columns = append(columns, &p.Metrics)
		head = append(head, fmt.Sprintf("%s (%s-%s)", clean(p.Name), lasting(p.FromS), lasting(p.ToS)))
	}
	columns, head = append(columns, &r.Metrics), append(head, "all")
	if s := r.Scenario; s != nil && len(s.Limits) > 1 && len(s.Limits) <= mostLimits {
		for _, l := range s.Limits {
			if m, ok := r.Limits[l.Name]; ok {
				columns, head = append(columns, &m), append(head, "limit "+clean(l.Name))
			}
		}
	}
	names := []string{"offered", "admitted", "ideal"}
	for _, m := range scenario.Metrics {
		names = append(names, m.Name)
	}
	t.table(head, columns, names)
}

// figure returns a metric, or the tokens offered, admitted or ideal, as text.
func (m *Metrics) figure(name string) string {
	switch {
	case m == nil:
		return Figure(-1, scenario.Tokens)
	case name == "offered":
		return Figure(float64(m.Offered), scenario.Tokens)
	case name == "admitted":
		return Figure(float64(m.Admitted), scenario.Tokens)
	case name == "ideal":
		return Figure(float64(m.Ideal), scenario.Tokens)
	}
	return Figure(m.Value(name), scenario.UnitOf(name))
}

// table writes a line for each metric that is known of some column. All but the names are aligned to the right.
func (t *text) table(head []string, columns []*Metrics, names []string) {
	w := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\t"+strings.Join(head, "\t")+"\t")
	for _, name := range names {
		row := make([]string, len(columns))
		for i, m := range columns {
			row[i] = m.figure(name)
		}
		if slices.ContainsFunc(row, func(cell string) bool { return cell != "-" }) {
			fmt.Fprintln(w, name+"\t"+strings.Join(row, "\t")+"\t")
		}
	}
	_ = w.Flush()
}

// outcomes writes the expectations and their results, a line each.
func (t *text) outcomes(r *Report, indent string) {
	w := tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', 0)
	for _, o := range r.Expectations {
		metric, _, _ := strings.Cut(o.Text, " ")
		fmt.Fprintf(w, "%s%s\t%s\tis %s\n", indent, t.verdict(o.Passed), clean(o.Text),
			Figure(o.Value, scenario.UnitOf(metric)))
	}
	_ = w.Flush()
}

// sometimes writes what must have happened, a line each, and what else did.
func (t *text) sometimes(r *Report) {
	var wanted, others []string
	for _, h := range r.Sometimes {
		switch {
		case h.Wanted:
			wanted = append(wanted, fmt.Sprintf("%s  sometimes %s: %d\n", t.verdict(h.Count > 0), clean(h.Name), h.Count))
		case h.Count > 0:
			others = append(others, fmt.Sprintf("%s %d", clean(h.Name), h.Count))
		}
	}
	if len(wanted) > 0 {
		t.b.WriteString("\n" + strings.Join(wanted, ""))
	}
	if len(others) > 0 {
		t.line("\nalso happened: %s", strings.Join(others, ", "))
	}
}

// verdict returns PASS in green or FAIL in red, if there are colors. The escapes of both have one length, so that
// tables stay aligned.
func (t *text) verdict(passed bool) string {
	if !t.o.Color {
		return verdict(passed)
	}
	if passed {
		return "\x1b[32mPASS\x1b[0m"
	}
	return "\x1b[31mFAIL\x1b[0m"
}

func verdict(passed bool) string {
	if passed {
		return "PASS"
	}
	return "FAIL"
}
