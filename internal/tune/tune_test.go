package tune

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

const second = scenario.Duration(time.Second)

// little is a question that is answered in a moment.
func little() Question {
	return Question{
		Limit: scenario.Limit{Tokens: 40, Per: second}, Processes: 4, Outage: 6 * second, Requests: 60,
		Faults: []string{"partition", "none"}, Over: 40, Shortfall: 0.2,
	}
}

// Who accepts nothing beyond the limit gets fail-closed; who accepts no shortfall but any over-admission gets
// another. The answer is the same each time, and it holds with another seed.
func TestSearch(t *testing.T) {
	strict := little()
	strict.Over, strict.Shortfall = 0, 0.9
	generous := little()
	generous.Over, generous.Shortfall, generous.Faults = 1e6, 0.2, []string{"blackhole", "none"}
	for _, c := range []struct {
		name   string
		q      Question
		closed bool
	}{{"strict", strict, true}, {"generous", generous, false}} {
		t.Run(c.name, func(t *testing.T) {
			var last time.Duration
			a, err := Search(c.q, func(done, of time.Duration) {
				if done < last-time.Second/100 || done > of {
					t.Errorf("progress went from %v to %v of %v", last, done, of)
				}
				last = done
			})
			if err != nil {
				t.Fatal(err)
			}
			if closed := a.Advised.Mode == "closed"; closed != c.closed || len(a.Unsatisfied())+len(a.Broken) > 0 {
				t.Errorf("%s %q %q", a.Advice(), a.Unsatisfied(), a.Broken)
			}
			b, err := Search(c.q, nil)
			if err != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("another answer: %v", err)
			}
			reports, err := a.Verify(77)
			if err != nil || len(reports) != len(c.q.Faults) {
				t.Fatal(err)
			}
			for i, r := range reports {
				if !r.Passed || r.Seed != 77 {
					t.Errorf("the advice does not hold in %s:\n%v", a.Question.Faults[i], r)
				}
			}
			modes := map[string]bool{}
			for _, r := range a.Last {
				modes[r.Mode] = true
			}
			if len(modes) != 3 {
				t.Errorf("the answer shows only %v", modes)
			}
			text(t, a)
		})
	}
}

// text looks at what is printed.
func text(t *testing.T, a *Answer) {
	t.Helper()
	var b strings.Builder
	if err := a.Text(&b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"over_admission", "\n  *", a.Advice(), a.Standing.String(), a.Question.Go(a.Advised.Choice),
	} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %q in\n%s", part, b.String())
		}
	}
	if _, err := a.Sweep(); err != nil {
		t.Error(err)
	}
}

// What cannot be had is said, and by how much.
func TestUnsatisfied(t *testing.T) {
	q := little()
	q.Over, q.Shortfall, q.Calls = 0, 0, 0.5
	a, err := Search(q, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(a.Unsatisfied(), "\n")
	if !strings.Contains(all, "redis_calls <= 0.5/s is not kept") ||
		!strings.Contains(all, "no choice of the last round comes below") {
		t.Error(all)
	}
	if again := strings.Join(a.Broken, "\n"); !strings.Contains(again,
		"redis_calls <= 0.5/s in the fault partition, where it is ") {
		t.Errorf("run again: %q", again)
	}
}

func TestPareto(t *testing.T) {
	r := func(mode string, over, short, calls float64) Result {
		return Result{Choice: Choice{Mode: mode}, Over: over, Shortfall: short, Calls: calls}
	}
	a := &Answer{Last: []Result{
		r("local", 1, 0.1, 10), r("local", 1, 0.1, 10), r("closed", 0, 0.5, 10), r("open", 9, 0.1, 10),
		r("open", 9, 0, 10), r("local", 1, 0.2, 11),
	}}
	var got []float64
	for _, r := range a.Pareto() {
		got = append(got, r.Over, r.Shortfall)
	}
	if want := []float64{1, 0.1, 0, 0.5, 9, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The price follows what is accepted: less is cheaper, a broken bound is dearer than all that keep theirs, and
// fail-open comes after them too.
func TestPrice(t *testing.T) {
	q := little()
	if err := q.Check(); err != nil {
		t.Fatal(err)
	}
	most := q.maxCalls()
	prices := []float64{
		q.score(&Result{Calls: 1}),
		q.score(&Result{Calls: 1, Shortfall: 0.1}),
		q.score(&Result{Calls: most, Shortfall: q.Shortfall, Over: q.Over}),
		q.score(&Result{Choice: Choice{Mode: "open"}, Calls: most, Shortfall: q.Shortfall, Over: q.Over}),
		q.score(&Result{Over: q.Over + 2}),
		q.score(&Result{Over: 3 * q.Over}),
		q.score(&Result{Over: 3 * q.Over, Shortfall: 0.5}),
	}
	if !slices.IsSorted(prices) || prices[2] != 3 || prices[3] <= prices[2] || prices[4] <= prices[3] ||
		math.IsInf(prices[6], 0) {
		t.Errorf("%v", prices)
	}
	plain := []Result{
		{Choice: Choice{Size: 0}, price: 1.02},
		{Choice: Choice{Size: 5}, price: 1},
		{Choice: Choice{Mode: "open"}, price: 50},
	}
	got := best(plain, 1)
	if len(got) != 3 || got[0].Size != 0 || got[1].Size != 5 || got[2].Mode != "open" {
		t.Errorf("%+v", got)
	}
	plain[0].price = 2
	if got := best(plain, 1); got[0].Size != 5 {
		t.Errorf("a plain setting at twice the price: %+v", got)
	}
}

func TestCheck(t *testing.T) {
	for field, change := range map[string]func(*Question){
		"rate":      func(q *Question) { q.Limit.Tokens = 0 },
		"period":    func(q *Question) { q.Limit.Per = 0 },
		"burst":     func(q *Question) { q.Limit.Burst = -1 },
		"processes": func(q *Question) { q.Processes = 0 },
		"shape":     func(q *Question) { q.Shape = "round" },
		"demand":    func(q *Question) { q.Demand = math.NaN() },
		"keys":      func(q *Question) { q.Keys = -1 },
		"cost":      func(q *Question) { q.Cost = 41 },
		"maxcost":   func(q *Question) { q.Cost, q.MaxCost = 3, 2 },
		"outage":    func(q *Question) { q.Outage = second },
		"over":      func(q *Question) { q.Over = -1 },
		"shortfall": func(q *Question) { q.Shortfall = 1.5 },
		"calls":     func(q *Question) { q.Calls = math.Inf(1) },
		"requests":  func(q *Question) { q.Requests = 1 },
		"fault":     func(q *Question) { q.Faults = []string{"none", "none"} },
		"name":      func(q *Question) { q.Limit.Name = "x\nfleet n=1" },
	} {
		q := little()
		change(&q)
		if err := q.Check(); err == nil || !strings.Contains(err.Error(), field+" is ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, shape := range shapes {
		q := little()
		q.Shape = shape
		if err := q.Check(); err != nil {
			t.Errorf("%s: %v", shape, err)
		}
		for _, f := range Faults() {
			for _, c := range q.choices() {
				if _, err := q.scenario(c, f, time.Duration(q.Outage)); err != nil {
					t.Errorf("%s, %s, %v: %v", shape, f, c, err)
				}
			}
		}
	}
}

// The policy in Go compiles, with every setting that can be advised.
func TestGoCompiles(t *testing.T) {
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n\t\"time\"\n\n\t\"github.com/tiered-limiter/tiered-limiter/tiered\"\n)\n\nfunc main() {\n\t_ = time.Second\n")
	for _, s := range Services() {
		q := s.Question
		if err := q.Check(); err != nil {
			t.Fatal(err)
		}
		for _, c := range q.choices() {
			b.WriteString("{\n" + q.Go(c) + "_, _ = policy, options\n}\n")
		}
	}
	b.WriteString("}\n")
	path := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", os.DevNull, path)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for d, want := range map[time.Duration]string{
		time.Minute: "time.Minute", 1500 * time.Millisecond: "1500 * time.Millisecond", 7: "7 * time.Nanosecond",
		24 * time.Hour: "24 * time.Hour",
	} {
		if got := goDuration(d); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}

// A demand that is too much to simulate is made smaller without a request becoming large beside the burst.
func TestScale(t *testing.T) {
	for _, c := range []struct {
		tokens, keys   int64
		byKeys, byCost int64
	}{{40, 1, 1, 1}, {1000, 1, 1, 5}, {100_000, 1, 1, 500}, {10, 1000, 50, 1}, {1000, 1000, 50, 10}} {
		q := Question{Limit: scenario.Limit{Tokens: c.tokens, Per: second}, Processes: 10, Keys: c.keys, Requests: 300}
		if err := q.Check(); err != nil {
			t.Fatal(err)
		}
		if keys, requests := q.scaleDown(); keys != c.byKeys || requests != c.byCost {
			t.Errorf("%+v: %d keys, %d requests", c, keys, requests)
		}
	}
}
