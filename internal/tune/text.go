package tune

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Pareto are the results of the last round that no other beats: in each of over-admission, shortfall and calls
// another is worse, or as good; of equal ones the first.
func (a *Answer) Pareto() (front []Result) {
	for i := range a.Last {
		r := &a.Last[i]
		beaten := slices.ContainsFunc(a.Last, func(o Result) bool {
			return o.Over <= r.Over && o.Shortfall <= r.Shortfall && o.Calls <= r.Calls &&
				(o.Over < r.Over || o.Shortfall < r.Shortfall || o.Calls < r.Calls)
		})
		same := slices.ContainsFunc(front, func(o Result) bool {
			return o.mode() == r.mode() && o.Over == r.Over && o.Shortfall == r.Shortfall && o.Calls == r.Calls
		})
		if !beaten && !same || i == 0 {
			front = append(front, *r)
		}
	}
	return front
}

// Advice is what to take and why, in a sentence.
func (a *Answer) Advice() string {
	r := &a.Advised
	text := fmt.Sprintf("Take %v: over %d faults at most %s tokens beyond the limit, %s short of an ideal limiter, %s calls of Redis per second",
		r.Choice, len(a.Question.Faults), measure.Figure(max(r.Over, 0), scenario.Tokens),
		measure.Figure(max(r.Shortfall, 0), scenario.Ratio),
		measure.Figure(r.Calls, scenario.Count))
	for _, mode := range []string{"local", "closed", "open"} {
		i := slices.IndexFunc(a.Last, func(o Result) bool { return o.mode() == mode })
		if mode == r.mode() || i < 0 {
			continue
		}
		o := &a.Last[i]
		text += fmt.Sprintf("; fail-%s would be %s and %s", mode,
			measure.Figure(max(o.Over, 0), scenario.Tokens), measure.Figure(max(o.Shortfall, 0), scenario.Ratio))
	}
	return text + "."
}

// Text writes the answer: what was asked, the choices that none beats, the advice, what nothing satisfies, whether
// standing shares pay, and the policy in Go.
func (a *Answer) Text(w io.Writer) error {
	var b strings.Builder
	q := &a.Question
	keys, requests := q.scaleDown()
	fmt.Fprintf(&b, "%d choices in %d runs, seed %d; faults of %v: %s\n", a.Tried, a.Runs, q.Seed, q.Outage,
		strings.Join(q.Faults, ", "))
	fmt.Fprintf(&b, "demand %s, %.4g requests per second", q.Shape, q.rate())
	if keys > 1 {
		fmt.Fprintf(&b, "; one key was simulated for %d", keys)
	}
	if requests > 1 {
		fmt.Fprintf(&b, "; one request was simulated for %d", requests)
	}
	fmt.Fprintf(&b, "\naccepted: over_admission <= %s, shortfall <= %s", measure.Figure(q.Over, scenario.Tokens),
		measure.Figure(q.Shortfall, scenario.Ratio))
	if q.Calls > 0 {
		fmt.Fprintf(&b, ", redis_calls <= %s", measure.Figure(q.Calls, scenario.PerSec))
	}
	b.WriteString("\n\n")
	tab := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "\tmode\tsize\tperiod\tprocesses\tover_admission\tshortfall\tredis_calls\tdecide_max\t")
	for _, r := range a.Pareto() {
		mark := ""
		if r.Choice == a.Advised.Choice {
			mark = "*"
		}
		v := r.values()
		if r.Size < 0 {
			v[periodPath] = "-"
		}
		fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", mark, v[modePath], v[sizePath], v[periodPath],
			v[processesPath],
			figure(r.Over, r.WorstOver, scenario.Tokens), figure(r.Shortfall, r.WorstShortfall, scenario.Ratio),
			measure.Figure(r.Calls, scenario.PerSec), measure.Figure(r.DecideMax/1e6, scenario.Seconds))
	}
	_ = tab.Flush()
	fmt.Fprintf(&b, "\n%s\n", a.Advice())
	for _, line := range a.Unsatisfied() {
		fmt.Fprintf(&b, "NOT SATISFIED: %s\n", line)
	}
	if len(a.Broken) == 0 {
		fmt.Fprintf(&b, "Run again with seed %d it keeps what is accepted, in all faults.\n", q.Seed+1)
	}
	for _, line := range a.Broken {
		fmt.Fprintf(&b, "NOT KEPT with seed %d: %s\n", q.Seed+1, line)
	}
	fmt.Fprintf(&b, "%v\n", &a.Standing)
	b.WriteString("\nOn a napkin, and measured:\n\n")
	for _, e := range a.expected() {
		fmt.Fprintf(&b, "  %s: %s %s, measured %s\n      %s\n", e.Name,
			map[bool]string{true: "at most", false: "about"}[e.AtMost], e.Text, e.MeasuredText, e.What)
	}
	fmt.Fprintf(&b, "\n%s", q.Go(a.Advised.Choice))
	_, err := io.WriteString(w, b.String())
	return err
}

// figure is a value, and the fault it is from when it is something.
func figure(v float64, fault string, u scenario.Unit) string {
	text := measure.Figure(max(v, 0), u)
	if v > 0 {
		text += " (" + fault + ")"
	}
	return text
}

// Sweep is the last round as a sweep, for a page and for JSON: the worst of each choice over all faults. Its
// scenario is the advised choice in the first fault.
func (a *Answer) Sweep() (*measure.Sweep, error) {
	q := &a.Question
	s, err := q.scenario(a.Advised.Choice, q.Faults[0], time.Duration(q.Outage))
	if err != nil {
		return nil, err
	}
	out := &measure.Sweep{
		Schema: measure.Schema, Scenario: s, Engine: "virtual", Seed: q.Seed, Advice: a.Advice(),
		Advised: a.Advised.values(),
		Policy:  q.policy(a.Advised.Choice), Expected: a.expected(),
	}
	for _, path := range paths {
		axis := scenario.Axis{Path: path}
		for i := range a.Last {
			if v := a.Last[i].values()[path]; !slices.Contains(axis.Values, v) {
				axis.Values = append(axis.Values, v)
			}
		}
		out.Axes = append(out.Axes, axis)
	}
	for i := range a.Last {
		r := &a.Last[i]
		kept := true
		for _, b := range q.bounds(r) {
			kept = kept && !b.broken()
		}
		out.Cells = append(out.Cells, measure.Cell{Values: r.values(), Passed: kept, Metrics: r.metrics})
	}
	return out, nil
}
