package sim_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

var (
	write = flag.String("write", "", "write the table into this page, which make pages PAGE=engines does")
	only  = flag.String("only", ".", "the scenarios, a regular expression")
)

const page = "../docs/internals/engines.md"

// atOnce is how many real runs go on at one time; tries is how often a run is made that differs, the later ones
// with other seeds, and live ones by themselves.
const (
	atOnce = 4
	tries  = 3
)

// row is a scenario on the three engines, by their order.
type row struct {
	name    string
	reports [3]*measure.Report
	cannot  string // why it is not played live
	tried   int    // live
}

// TestEngines plays the whole library on the three engines and compares: a Redis in Go, the scripts in miniredis, and a
// redis-server with real processes.
func TestEngines(t *testing.T) {
	if *write == "" {
		t.Skip("a quarter of an hour: make pages PAGE=engines")
	}
	wanted := regexp.MustCompile(*only)
	var rows []*row
	var all []*scenario.Scenario
	for _, name := range sim.Library() {
		if wanted.MatchString(name) {
			s, err := sim.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			rows, all = append(rows, &row{name: name}), append(all, scaled(s))
		}
	}
	for i, engine := range sim.Engines[:2] {
		reports, err := sim.RunAll(all, &sim.Options{Engine: engine})
		if err != nil {
			t.Fatal(err)
		}
		for j, r := range reports {
			rows[j].reports[i] = r
		}
	}
	for i, r := range rows {
		for seed := uint64(2); seed <= tries && !r.same(1); seed++ {
			t.Logf("%s differs on lua: again, with seed %d on both", r.name, seed)
			for j, engine := range sim.Engines[:2] {
				report, err := sim.Run(all[i], &sim.Options{Engine: engine, Seed: seed})
				if err != nil {
					t.Fatal(err)
				}
				r.reports[j] = report
			}
		}
	}
	live(t, rows, all)
	for i, r := range rows {
		for r.cannot == "" && r.tried < tries && !r.same(2) {
			t.Logf("%s differs: again, by itself", r.name)
			r.play(t, all[i])
		}
	}
	for _, r := range rows {
		t.Log(strings.Join(r.cells(), " | "))
	}
	text, err := os.ReadFile(*write)
	if err != nil {
		t.Fatal(err)
	}
	sum, table := merged(string(text), rows)
	t.Log(sum)
	if err := section.Write(*write, "engines", sum+"\n\n"+section.Table(table)); err != nil {
		t.Fatal(err)
	}
}

// merged is the table of a page with the rows that were played in place of those that it had, and how many are the
// same.
func merged(page string, rows []*row) (sum string, table [][]string) {
	table = [][]string{{
		"scenario", "over_admission: virtual", "lua", "live", "shortfall: virtual", "lua", "live", "machine's lag", "",
	}}
	same := 0
	for _, name := range sim.Library() {
		var cells []string
		if i := slices.IndexFunc(rows, func(r *row) bool { return r.name == name }); i >= 0 {
			cells = rows[i].cells()
		} else if _, rest, ok := strings.Cut(page, "\n| `"+name+"` |"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			for cell := range strings.SplitSeq("`"+name+"` |"+strings.TrimSuffix(line, "|"), "|") {
				cells = append(cells, strings.TrimSpace(cell))
			}
		} else {
			continue
		}
		if cells[len(cells)-1] == "same" {
			same++
		}
		table = append(table, cells)
	}
	return fmt.Sprintf("%d of %d scenarios were the same on all three engines.", same, len(table)-1), table
}

// live plays all rows on real processes, several at one time.
func live(t *testing.T, rows []*row, all []*scenario.Scenario) {
	next := make(chan int)
	var players sync.WaitGroup
	for range atOnce {
		players.Go(func() {
			for i := range next {
				rows[i].play(t, all[i])
			}
		})
	}
	for i := range rows {
		next <- i
	}
	close(next)
	players.Wait()
}

// play plays it live once more.
func (r *row) play(t *testing.T, s *scenario.Scenario) {
	r.tried++
	report, err := sim.Run(s, &sim.Options{Engine: sim.Live, Seed: uint64(r.tried)})
	if err != nil {
		r.cannot = strings.ReplaceAll(strings.TrimPrefix(err.Error(), "sim: engine live: "), "\n", "; ")
		return
	}
	r.reports[2] = report
	t.Logf("%s: over_admission %.0f, shortfall %.3f, lag %.0f ms, as virtual: %v", r.name,
		report.Metrics.OverAdmission, report.Metrics.Shortfall, report.LagMs, r.same(2))
}

// same reports whether an engine gave what the first did.
func (r *row) same(engine int) bool {
	a, b := r.reports[0], r.reports[engine]
	rate := 0.0
	for i := range b.Scenario.Limits {
		l := &b.Scenario.Limits[i]
		rate = max(rate, float64(l.Tokens)/time.Duration(l.Per).Seconds())
	}
	room := measure.Apart.Late(time.Duration(b.LagMs*float64(time.Millisecond)), rate)
	return room.Equal(a.Metrics.OverAdmission, b.Metrics.OverAdmission, scenario.Tokens) &&
		room.Equal(a.Metrics.Shortfall, b.Metrics.Shortfall, scenario.Ratio)
}

func (r *row) verdict() string {
	var differ []string
	for i, engine := range sim.Engines {
		if r.reports[i] != nil && !r.same(i) {
			differ = append(differ, engine)
		}
	}
	if len(differ) > 0 {
		return "differs: " + strings.Join(differ, ", ")
	}
	if r.cannot != "" {
		return "same; not live: " + r.cannot
	}
	return "same"
}

func (r *row) cells() []string {
	cells := []string{"`" + r.name + "`"}
	for _, metric := range []struct {
		name string
		unit scenario.Unit
	}{{"over_admission", scenario.Tokens}, {"shortfall", scenario.Ratio}} {
		for _, report := range r.reports {
			v := -1.0
			if report != nil {
				v = report.Metrics.Value(metric.name)
			}
			cells = append(cells, measure.Figure(v, metric.unit))
		}
	}
	lag := -1.0
	if report := r.reports[2]; report != nil {
		lag = report.LagMs / 1000
	}
	return append(cells, measure.Figure(lag, scenario.Seconds), r.verdict())
}

// The page has all scenarios, and none of them differs.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range sim.Library() {
		if !strings.Contains(string(text), "| `"+name+"` |") {
			t.Errorf("docs/internals/engines.md has no %q: make pages PAGE=engines writes it", name)
		}
	}
	if strings.Contains(string(text), "differs:") {
		t.Error("docs/internals/engines.md has an engine that differs: a bug of one of them")
	}
}

// Some of the scenarios can be played again, and the others stay.
func TestMerged(t *testing.T) {
	page := "x\n| scenario | |\n| --- | --- |\n| `bursts` | 1 | same |\n| `outage` | 2 | differs: lua |\n"
	again := &row{name: "outage", cannot: "no"}
	sum, table := merged(page, []*row{again})
	if len(table) != 3 || !slices.Equal(table[1], []string{"`bursts`", "1", "same"}) ||
		!slices.Equal(table[2], again.cells()) ||
		sum != "1 of 2 scenarios were the same on all three engines." {
		t.Errorf("%q %q", sum, table)
	}
}

// What is no noise is seen.
func TestSame(t *testing.T) {
	s, err := sim.Load("outage")
	if err != nil {
		t.Fatal(err)
	}
	report := func(over, shortfall, lag float64) *measure.Report {
		return &measure.Report{
			Scenario: s, Metrics: measure.Metrics{OverAdmission: over, Shortfall: shortfall},
			LagMs: lag,
		}
	}
	for _, c := range []struct {
		live *measure.Report
		want bool
	}{
		{report(1000, .05, 0), true},
		{report(1149, .07, 0), true},
		{report(1600, .05, 0), false},
		{report(1000, .1, 0), false},
		{report(1600, .05, 600), true},
		{report(1000, .1, 600), true},
	} {
		r := row{reports: [3]*measure.Report{report(1000, .05, 0), report(1000, .05, 0), c.live}}
		if r.same(2) != c.want || !r.same(1) || (r.verdict() == "same") != c.want {
			t.Errorf("%v: same %v, %q", r.cells(), r.same(2), r.verdict())
		}
	}
}
