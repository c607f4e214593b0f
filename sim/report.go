package sim

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Report is what came of a scenario.
type Report struct {
	Scenario Scenario
	Modes    []ModeReport
}

// ModeReport is what came of it in one fail mode.
type ModeReport struct {
	Mode   tiered.FailMode
	Phases []Phase
	Checks []Check

	Trace uint64 // a sum over all decisions: equal for equal runs

	evidence evidence
}

// Passed reports whether all promises were kept.
func (r *Report) Passed() bool {
	for i := range r.Modes {
		if !r.Modes[i].Passed() {
			return false
		}
	}
	return true
}

// Passed reports whether the promises of the mode were kept.
func (m *ModeReport) Passed() bool {
	for _, c := range m.Checks {
		if !c.Passed() {
			return false
		}
	}
	return true
}

// Trace is a number that is the same for equal runs and as good as never for others.
func (r *Report) Trace() uint64 {
	var sum uint64
	for i, m := range r.Modes {
		sum += mix(m.Trace + uint64(i))
	}
	return sum
}

// String is the report as text, in ASCII: a table per phase, then each mode's promises.
func (r *Report) String() string {
	var b strings.Builder
	r.head(&b)
	if len(r.Modes) == 0 {
		return b.String()
	}
	for i, p := range r.Modes[0].Phases {
		fmt.Fprintf(&b, "\n%s: %s to %s\n", p.Name, short(p.From), short(p.To))
		r.table(&b, i)
	}
	b.WriteString("\noffered, admitted: tokens of the hot key; limit: what one ideal bucket admits of the same requests.\n" +
		"over: tokens admitted beyond burst + rate*t, in the worst interval of the phase.\n" +
		"denied: requests of the other users, all within their limit, that were refused.\n" +
		"longest: a decision. open: breakers that are not closed when the phase ends.\n\n")
	r.verdicts(&b)
	fmt.Fprintf(&b, "\ntrace %016x\n", r.Trace())
	return b.String()
}

// head says what was run.
func (r *Report) head(b *strings.Builder) {
	s := &r.Scenario
	hot, cold := s.Hot.Policy.Limit, s.Cold.Policy.Limit
	fmt.Fprintf(b, "%s: Redis is a black hole from %s to %s of %s\n\n", s.Name, short(s.From), short(s.To), short(s.Length))
	fmt.Fprintf(b, "%d processes share one hot key, %d tokens per %s with bursts of %d, offered at %g times that,\n",
		s.Processes, hot.Tokens, short(hot.Per), burst(hot), s.Hot.Load)
	fmt.Fprintf(b, "and %d users with %d per %s each, bursts of %d, who ask for %g of that. Seed %d, virtual time.\n",
		s.Cold.Keys, cold.Tokens, short(cold.Per), burst(cold), s.Cold.Load, s.Seed)
}

// table is one phase, a line per mode.
func (r *Report) table(b *strings.Builder, phase int) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "mode\toffered\tadmitted\tlimit\tover\tdenied\tlongest\tcalls/s\topen\t")
	for _, m := range r.Modes {
		p := m.Phases[phase]
		fmt.Fprintf(w, "%v\t%d\t%d\t%d\t%.0f\t%d of %d\t%.1fms\t%.1f\t%.0f%%\t\n", m.Mode, p.Offered, p.Admitted, p.Limit,
			whole(p.Over), p.Denied, p.Within, ms(p.Longest), p.Calls, 100*p.Open)
	}
	_ = w.Flush()
}

// whole is x in whole tokens, rounded up but for what the clock's grain may be.
func whole(x float64) float64 { return max(math.Ceil(x-0.01), 0) }

// short is d in seconds.
func short(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }

// verdicts are a line per promise, and the sum of it.
func (r *Report) verdicts(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tmode\tmeasured\t\tat most\tbecause")
	for _, m := range r.Modes {
		for _, c := range m.Checks {
			fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%s\t%s\n", word(c.Passed()), m.Mode, c.What, figure(c.Value), figure(c.Most), c.Why)
		}
	}
	_ = w.Flush()
	fmt.Fprintf(b, "\n%s: %s\n", word(r.Passed()), map[bool]string{
		true: "every promise was kept", false: "a promise was broken",
	}[r.Passed()])
}

func word(passed bool) string {
	if passed {
		return "PASS"
	}
	return "FAIL"
}

// figure prints a number with a digit after the point where there is something.
func figure(x float64) string {
	switch r := math.Round(x); {
	case math.IsInf(x, 1):
		return "any"
	case math.Abs(x-r) < 0.05:
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.1f", x)
}
