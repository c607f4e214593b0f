package tune

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

var write = flag.String("write", "", "write the advice of a full search into this page, which make pages PAGE=tuning does")

// verifySeed is another one than that of the search.
const verifySeed = 4711

// What is advised for five services that are unlike each other holds when it is run again with another seed, in all
// faults. In the tests the search is a short one; make pages PAGE=tuning makes it in full.
func TestServices(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute")
	}
	rows := [][]string{{
		"service", "wants", "advice", "over_admission", "shortfall", "Redis calls",
		"longest decision", "holds with another seed",
	}}
	var commands strings.Builder
	for _, s := range Services() {
		t.Run(s.Name, func(t *testing.T) {
			q := s.Question
			if *write == "" {
				q.Requests, q.Faults = 60, []string{"blackhole", "none", "partition"}
				if q.Processes > 20 {
					q.Processes = 20
				}
			}
			a, err := Search(q, nil)
			if err != nil {
				t.Fatal(err)
			}
			reports, err := a.Verify(verifySeed)
			if err != nil {
				t.Fatal(err)
			}
			held := "all faults"
			for i, r := range reports {
				if r.Passed {
					continue
				}
				held = "not in " + a.Question.Faults[i]
				if len(a.Unsatisfied()) == 0 {
					t.Errorf("the advice does not hold in %s: %s\n%v", a.Question.Faults[i], a.Advice(), r)
				}
			}
			for _, line := range a.Unsatisfied() {
				t.Errorf("%s: %s", a.Advice(), line)
			}
			t.Logf("%s: formula and run agree within a factor of %.2f", a.Advice(), agree(t, a))
			r := &a.Advised
			rows = append(rows, []string{
				s.Name, s.Wants, r.String(), figure(r.Over, r.WorstOver, scenario.Tokens),
				figure(r.Shortfall, r.WorstShortfall, scenario.Ratio),
				measure.Figure(r.Calls, scenario.PerSec), measure.Figure(r.DecideMax/1e6, scenario.Seconds), held,
			})
			commands.WriteString("go run ./cmd/tiersim tune " + strings.Join(s.Flags, " ") + "\n")
		})
	}
	if *write == "" || t.Failed() {
		return
	}
	if err := section.Write(*write, "services", section.Table(rows)+"\n```sh\n"+commands.String()+"```\n"); err != nil {
		t.Fatal(err)
	}
}

// The page has all of them, and asks what is asked here.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../sim/tuning.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Services() {
		for _, part := range []string{"| " + s.Name + " |", "/tiersim tune " + strings.Join(s.Flags, " ") + "\n"} {
			if !strings.Contains(string(text), part) {
				t.Errorf("sim/tuning.md has no %q: make pages PAGE=tuning writes it", part)
			}
		}
	}
}
