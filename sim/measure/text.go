package measure

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// String is the report as Text has it, without colors.
func (r *Report) String() string {
	name := ""
	if r.Scenario != nil {
		name = r.Scenario.Name
	}
	var b strings.Builder
	_ = Text(&b, []string{cmp.Or(name, "no name")}, []*Report{r}, false)
	return b.String()
}

// Text writes reports for a terminal: what the faults cost in words; of a single run what was run,
// and its metrics by phase and limit; of several the most telling metrics of each phase, side by
// side; and for each run its expectations, what happened, and in the last line whether it passed.
// There must be as many names as reports. Color adds ANSI escapes. Text that is not plain is
// quoted. There is no key in it, because no report has one.
func Text(w io.Writer, names []string, all []*Report, color bool) error {
	t := &text{color: color}
	t.sentences(names, all)
	if len(all) == 1 {
		t.run(all[0])
	} else {
		t.sideBySide(names, all)
	}
	for i, r := range all {
		t.outcomes(r)
		t.line("%s  %s: seed %d, unseed %s", t.verdict(r.Passed), clean(names[i]), r.Seed, clean(cmp.Or(r.Unseed, "unknown")))
	}
	_, err := io.WriteString(w, t.String())
	return err
}

// text is what is being written.
type text struct {
	strings.Builder
	color bool
}

func (t *text) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

// clean returns a user's text as it is if all of it can be printed, else in quotes. So nothing in
// it moves a cursor.
func clean(s string) string {
	for _, c := range s {
		if c == utf8.RuneError || !strconv.IsPrint(c) {
			return strconv.Quote(s)
		}
	}
	return s
}

// mostLimits is the number of limits that have a column each: more are too wide for a terminal.
const mostLimits = 4

// run writes what was run, and a line for each metric.
func (t *text) run(r *Report) {
	s := cmp.Or(r.Scenario, &scenario.Scenario{})
	if t.Len() > 0 {
		t.line("")
	}
	t.line("%s", strings.TrimSpace(clean(cmp.Or(s.Name, "no name"))+"\n"+clean(s.Learn)))
	t.line("")
	t.line("seed   %d: %s, measured from %s on", r.Seed, s.Length, scenario.Duration(warmUp(s)))
	t.line("fleet  %d processes, fail-%s", s.Fleet.N, clean(cmp.Or(s.Fleet.Mode, "local")))
	own := func(mode string) string {
		if mode == "" {
			return ""
		}
		return ", fail-" + clean(mode)
	}
	for _, l := range s.Limits {
		t.line("limit  %s: %s%s", clean(l.Name), clean(l.String()), own(r.FailModes[l.Name]))
	}
	if n := s.AtOnce.Places; n > 0 {
		t.line("places %d of each key%s", n, own(r.AtOnceFailMode))
	}
	for _, f := range r.Faults {
		t.line("fault  %s", clean(f.Text))
	}
	t.line("")
	var columns []*Metrics
	var head []string
	for i := range r.Phases {
		p := &r.Phases[i]
		columns, head = append(columns, &p.Metrics), append(head, p.title())
	}
	columns, head = append(columns, &r.Metrics), append(head, "all")
	for _, l := range s.Limits {
		if m, ok := r.Limits[l.Name]; ok && len(s.Limits) > 1 && len(s.Limits) <= mostLimits {
			columns, head = append(columns, &m), append(head, "limit "+clean(l.Name))
		}
	}
	names := []string{"offered", "admitted", "ideal"}
	for _, m := range scenario.Metrics {
		names = append(names, m.Name)
	}
	t.table(head, columns, names)
}

func (p *Phase) title() string {
	return fmt.Sprintf("%s (%s-%s)", clean(p.Name), Figure(p.FromS, scenario.Seconds), Figure(p.ToS, scenario.Seconds))
}

// compared are the metrics of tables with little room.
var compared = []string{
	"utilisation", "over_admission", "shortfall", "alone", "denied_within", "decide_p99", "decide_max", "redis_calls",
	"detect", "heal",
}

// comparedAtOnce come to them if something runs.
var comparedAtOnce = []string{"at_once", "full"}

// sideBySide writes a table for each phase, with a column for each report.
func (t *text) sideBySide(names []string, all []*Report) {
	head := []string{}
	for _, name := range names {
		head = append(head, clean(name))
	}
	for _, name := range []string{"before", "during", "after"} {
		columns, title := make([]*Metrics, len(all)), ""
		for i, r := range all {
			for j := range r.Phases {
				if p := &r.Phases[j]; p.Name == name {
					columns[i], title = &p.Metrics, cmp.Or(title, p.title())
				}
			}
		}
		if title != "" {
			t.line("\n%s", title)
			t.table(head, columns, slices.Concat(compared, comparedAtOnce))
		}
	}
}

// table writes a line for each metric that is known of some column.
func (t *text) table(head []string, columns []*Metrics, names []string) {
	rows := [][]string{append([]string{""}, head...)}
	for _, name := range names {
		row := []string{name}
		for _, m := range columns {
			row = append(row, m.figure(name))
		}
		if slices.ContainsFunc(row[1:], func(cell string) bool { return cell != "-" }) {
			rows = append(rows, row)
		}
	}
	t.grid(rows)
}

// grid writes rows of cells, aligned to the right.
func (t *text) grid(rows [][]string) {
	w := tabwriter.NewWriter(t, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
	}
	_ = w.Flush()
}

// outcomes writes the expectations and their results, what must have happened, and what else did.
func (t *text) outcomes(r *Report) {
	w := tabwriter.NewWriter(t, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w)
	for _, o := range r.Expectations {
		metric, _, _ := strings.Cut(o.Text, " ")
		fmt.Fprintf(w, "%s\t%s\tis %s\n", t.verdict(o.Passed), clean(o.Text), Figure(o.Value, scenario.UnitOf(metric)))
	}
	var others []string
	for _, h := range r.Sometimes {
		if h.Wanted {
			fmt.Fprintf(w, "%s\tsometimes %s\tis %d\n", t.verdict(h.Count > 0), clean(h.Name), h.Count)
		} else if h.Count > 0 {
			others = append(others, fmt.Sprintf("%s %d", clean(h.Name), h.Count))
		}
	}
	_ = w.Flush()
	if len(others) > 0 {
		t.line("also happened: %s", strings.Join(others, ", "))
	}
}

// verdict returns PASS in green or FAIL in red, if there are colors. The escapes of both have one
// length, so that tables stay aligned.
func (t *text) verdict(passed bool) string {
	word, color := "FAIL", 31
	if passed {
		word, color = "PASS", 32
	}
	if t.color {
		return fmt.Sprintf("\x1b[%dm%s\x1b[0m", color, word)
	}
	return word
}

// figure returns a metric as text.
func (m *Metrics) figure(name string) string {
	if m == nil {
		return "-"
	}
	return Figure(m.Value(name), scenario.UnitOf(name))
}

// Figure formats a value of a metric in the unit of an expectation, in at most four digits or
// whole: 1000, 5%, 1.5ms, 261/s. An unknown value is -.
func Figure(v float64, u scenario.Unit) string {
	switch {
	case v < 0:
		return "-"
	case u == scenario.Ratio:
		return digits(v*100) + "%"
	case u == scenario.PerSec:
		return digits(v) + "/s"
	case u != scenario.Seconds:
		return digits(v)
	}
	for _, u := range []struct {
		name string
		in   float64 // s
	}{{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}} {
		if v >= u.in*0.99995 {
			return digits(v/u.in) + u.name
		}
	}
	return "0s"
}

// digits is v in four digits, or whole.
func digits(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	x, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// sentences writes what the faults of some runs cost, a line for each, for readers who do not know
// our metrics. A run without a fault has none. Each line begins with the fail mode, and also with
// the name if two runs have the same.
func (t *text) sentences(names []string, all []*Report) {
	runs := map[string]int{} // by fail modes
	for _, r := range all {
		runs[r.Modes()]++
	}
	for i, r := range all {
		if len(r.Faults) == 0 {
			continue
		}
		about := r.Modes()
		if runs[about] > 1 {
			about = clean(names[i]) + ", " + about
		}
		t.line("%s: %s", about, r.Cost())
	}
}

// Cost says what the faults of a run cost: who was refused, what was too much, and when all was
// normal again.
func (r *Report) Cost() string {
	return r.refused() + r.tooMany() + ", " + r.atOnce() + r.normalAgain()
}

// Modes returns the fail modes of all policies: "fail-local", or "fail-local and fail-open".
func (r *Report) Modes() string {
	fleet, modes := "local", []string{}
	if r.Scenario != nil {
		fleet = cmp.Or(r.Scenario.Fleet.Mode, fleet)
		for _, l := range r.Scenario.Limits {
			modes = append(modes, "fail-"+clean(cmp.Or(r.FailModes[l.Name], fleet)))
		}
	}
	slices.Sort(modes)
	return cmp.Or(strings.Join(slices.Compact(modes), " and "), "fail-"+clean(fleet))
}

// refused says whether users who keep to their limit were refused. It goes by denied_within, but
// only of limits under which the ideal admits everything, because above a limit any limiter refuses
// some requests. If there is no such limit, shortfall says how much less was admitted.
func (r *Report) refused() string {
	worst := -1.0
	for _, m := range r.Limits {
		if m.Offered > 0 && m.Ideal == m.Offered {
			worst = max(worst, m.DeniedWithin)
		}
	}
	// a part is told to a tenth of a percent
	percent := func(part float64) string { return digits(max(math.Round(part*1000), 1)/10) + " % of " }
	switch {
	case worst == 0:
		return "nobody within the limit refused, "
	case worst > 0:
		return percent(worst) + "the requests within the limit refused, "
	case r.Metrics.Shortfall == 0:
		return "nothing refused that the limit allows, "
	case r.Metrics.Shortfall > 0:
		return percent(r.Metrics.Shortfall) + "what the limit allows refused, "
	}
	return ""
}

// tooMany says how far the limit was exceeded. Less than a token comes from rounded times, and does
// not count.
func (r *Report) tooMany() string {
	switch n := math.Round(r.Metrics.OverAdmission); {
	case n < 1:
		return "no token too many"
	case n == 1:
		return "1 token too many"
	default:
		return fmt.Sprintf("%.0f tokens too many", n)
	}
}

// atOnce says how many requests of a key ran at the same time, and how many found no place.
func (r *Report) atOnce() string {
	if r.Scenario == nil || r.Scenario.AtOnce.Places == 0 {
		return ""
	}
	return fmt.Sprintf("at most %s ran at the same time on %d places, %s %% found none, ",
		digits(r.Metrics.AtOnce), r.Scenario.AtOnce.Places, digits(math.Round(r.Metrics.Full*1000)/10))
}

// normalAgain says how long after the last fault as much was admitted as without one.
func (r *Report) normalAgain() string {
	switch s := r.Metrics.Recovered; {
	case s > 0:
		return "normal again after " + digits(s) + " s"
	case s == 0:
		return "normal again at once"
	case !slices.ContainsFunc(r.Phases, func(p Phase) bool { return p.Name == "after" }):
		return "the fault lasts to the end"
	}
	return "not normal again before the end"
}
