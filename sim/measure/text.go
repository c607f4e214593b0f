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
	ASCII bool // ASCII only, unless the scenario has other characters
	Width int  // columns of the timeline, 72 if 0; 10 … 600
}

// String is the report as Text has it, in UTF-8 and without colors.
func (r *Report) String() string {
	var b strings.Builder
	_ = r.Text(&b, TextOptions{})
	return b.String()
}

// Text writes the report for a terminal: what was run, the metrics of each phase, the run over time, the expectations,
// what happened, and in its last line whether it passed and how to run it again. It quotes a user's text that is not
// plain. It contains no key, because no report does.
func (r *Report) Text(w io.Writer, o TextOptions) error {
	t := &text{o: o}
	if t.o.Width == 0 {
		t.o.Width = 72
	}
	t.o.Width = min(max(t.o.Width, 10), maxSteps)
	t.head(r)
	t.phases(r)
	t.timeline(r)
	t.expectations(r)
	t.sometimes(r)
	t.audit(r)
	t.last(r)
	_, err := io.WriteString(w, t.b.String())
	return err
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
	t.line("engine %s, seed %d: %s, measured from %s on", clean(cmp.Or(r.Engine, "unknown")), r.Seed, s.Length,
		scenario.Duration(warmUp(s)))
	mode := cmp.Or(s.Fleet.Mode, "local")
	t.line("fleet  %d processes, fail-%s", s.Fleet.N, clean(mode))
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
}

// mostLimits is the number of limits that have a column each: more are too wide for a terminal.
const mostLimits = 4

// phases writes a table: a line per known metric, a column per phase, for the whole run, and per limit if there are
// several.
func (t *text) phases(r *Report) {
	columns := make([]*Metrics, 0, len(r.Phases)+1)
	head := []string{""}
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

	t.line("")
	w := t.table()
	writeRow(w, head)
	values := make([]float64, len(columns))
	for _, m := range tokenMetrics {
		for i, x := range columns {
			values[i] = float64(m.get(x))
		}
		metricRow(w, m.name, scenario.Tokens, values)
	}
	for _, m := range scenario.Metrics {
		for i, x := range columns {
			values[i] = x.Value(m.Name)
		}
		metricRow(w, m.Name, m.Unit, values)
	}
	_ = w.Flush()
}

func (t *text) expectations(r *Report) {
	if len(r.Expectations) == 0 {
		return
	}
	t.line("")
	t.outcomes(r, "")
}

// writeRow writes a line of a table. Its cells are aligned to the right.
func writeRow(w io.Writer, cells []string) { fmt.Fprintln(w, strings.Join(cells, "\t")+"\t") }

// metricRow writes a metric with a value per column, unless none is known.
func metricRow(w io.Writer, name string, u scenario.Unit, values []float64) {
	if slices.ContainsFunc(values, func(v float64) bool { return v >= 0 }) {
		cells := []string{name}
		for _, v := range values {
			cells = append(cells, Figure(v, u))
		}
		writeRow(w, cells)
	}
}

// table returns one whose cells are aligned to the right.
func (t *text) table() *tabwriter.Writer {
	return tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// sometimes writes what must have happened, a line each, and what else did.
func (t *text) sometimes(r *Report) {
	var others []string
	first := true
	for _, h := range r.Sometimes {
		switch {
		case h.Wanted:
			if first {
				t.line("")
				first = false
			}
			seen := strconv.FormatInt(h.Count, 10)
			if h.Unseen {
				seen = unseen
			}
			t.line("%s  sometimes %s: %s", t.outcome(h.Count > 0, h.Unseen), clean(h.Name), seen)
		case h.Count > 0:
			others = append(others, fmt.Sprintf("%s %d", clean(h.Name), h.Count))
		}
	}
	if len(others) > 0 {
		t.line("\nalso happened: %s", strings.Join(others, ", "))
	}
}

// audit writes the result of the audit.
func (t *text) audit(r *Report) {
	switch a := &r.Audit; {
	case a.Looks < 0:
		t.line("\n%s  audit: %s", t.outcome(false, true), unseen)
	case a.Broken > 0:
		t.line("\n%s  audit: broken at %d of %d looks, by up to %s tokens\n      first at %s", t.verdict(false),
			a.Broken, a.Looks, short(a.Excess), clean(a.First))
	case a.Looks > 0:
		t.line("\n%s  audit: %d looks", t.verdict(true), a.Looks)
	}
}

// last writes the verdict, and how to run it again.
func (t *text) last(r *Report) {
	engine := cmp.Or(r.Engine, "virtual")
	again := fmt.Sprintf("again with --engine %s --seed %d, or tiersim replay of its JSON", clean(engine), r.Seed)
	if r.Engine == "live" {
		t.line("\nledger: what Redis granted to who had gone or given up nobody saw, and what a killed process did last\n"+
			"the machine itself held processes up for up to %s: times may be longer by so much",
			Figure(r.LagMs*millisecond, scenario.Seconds))
		again += ": no two are equal"
	}
	if r.Unseed != "" {
		again = fmt.Sprintf("unseed %s; %s", clean(r.Unseed), again)
	}
	t.line("\n%s  %s", t.verdict(r.Passed), again)
}

// unseen is written for what an engine cannot see.
const unseen = "not seen by this engine"

// outcomeText returns the measured value of an expectation.
func outcomeText(o *Outcome, u scenario.Unit) string {
	if o.Unseen {
		return unseen
	}
	return "is " + Figure(o.Value, u)
}

// outcome returns the verdict on one thing, if there is one.
func (t *text) outcome(passed, unseen bool) string {
	if unseen {
		return "-   "
	}
	return t.verdict(passed)
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
