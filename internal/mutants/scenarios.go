package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

// exposed are the themes whose mistakes a fault may show: those of the lease protocol. Who asks when is a matter of cost,
// what concerns nodes and errors needs a Cluster, certificates or a log to be seen, and the others are not about the limiter.
var exposed = []string{"script", "script-short", "script-sums", "script-time", "settlement", "pot", "outage", "life"}

// scenarios are those of the library that look for the mistakes of a theme, the likeliest first; others show no more.
// They run in batches, so that one which shows something soon is not waited for by many.
var scenarios = map[string][]string{
	"script":      {"full-bucket", "flapping", "failover", "overtaking", "crowded", "impatient-callers", "everything"},
	"script-sums": {"full-bucket", "flapping", "failover", "llm-tokens", "everything", "outage-open", "partition"},
	"script-time": {"full-bucket", "clock-back", "overtaking", "crash-loop", "crowded", "clock-forward", "login", "failover", "partition", "impatient-callers"},
	"settlement":  {"full-bucket", "crowded", "impatient-callers", "cold-start", "flapping", "overtaking", "everything"},
	"pot":         {"full-bucket", "flapping", "cold-start"},
	"outage":      {"flapping", "outage", "outage-open", "login", "restart", "llm-tokens", "deploy-in-outage", "everything", "scale"},
	"life":        {"full-bucket", "crowded", "impatient-callers", "pause", "cold-start"},
}

// ofScripts are those that are run on the scripts, where a mistake is in nothing else: they take ten times as long.
var ofScripts = []string{"login", "clock-back", "freeze"}

// sectionName is that of the table in its page.
const sectionName = "scenario-mutants"

// found is what a look for a scenario came to.
type found struct {
	engine, scenario string // empty for none
	by               string // what in its report was broken
	err              error
}

// lookAll looks for a scenario for each of the mistakes that a fault may show, and writes the table.
func lookAll(ctx context.Context, r *runner, all, known []mutant, jobs int, page string) error {
	some := exposable(all)
	if len(some) == 0 {
		return fmt.Errorf("none of these can a fault show: themes %s", strings.Join(exposed, ", "))
	}
	results := make(map[string]found, len(some))
	var wrong []error
	each(some, jobs, func(m mutant) found { return r.look(ctx, m) }, func(i int, f found) {
		m := some[i]
		results[m.title()] = f
		switch {
		case f.err != nil:
			wrong = append(wrong, fmt.Errorf("%s: %q: %w", m.at, m.name, f.err))
		case f.scenario != "" && m.unseen != "":
			wrong = append(wrong, fmt.Errorf("%s: %q is called unseen, but %s shows it", m.at, m.name, f.scenario))
		}
		fmt.Printf("%s → %s\n", m.title(), strings.Join(f.cells(m), ", "))
		if page != "-" && ctx.Err() == nil { // each at once: who ends this keeps what was found
			if err := writeTable(page, exposable(known), results); err != nil {
				wrong = append(wrong, err)
			}
		}
	})
	seen := 0
	for _, f := range results {
		if f.scenario != "" {
			seen++
		}
	}
	fmt.Printf("%d of %d shown by a scenario\n", seen, len(some))
	return errors.Join(wrong...)
}

// exposable are those of the themes that a fault may show.
func exposable(all []mutant) []mutant {
	return slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return !slices.Contains(exposed, m.theme) })
}

// writeTable writes all results into a page; what was not looked for keeps the row that it has there.
func writeTable(page string, all []mutant, results map[string]found) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before := tableOf(string(text))
	rows := [][]string{{"mistake", "shown by", "where"}}
	seen, looked := 0, 0
	for _, m := range all {
		cells, ok := before[m.title()]
		if f, now := results[m.title()]; now && f.err == nil {
			cells, ok = f.cells(m), true
		}
		if !ok {
			cells = []string{unknown, ""}
		} else if looked++; cells[0] == none {
			cells = []string{none, m.unseen}
		} else {
			seen++
		}
		rows = append(rows, append([]string{m.title()}, cells...))
	}
	return section.Write(page, sectionName, fmt.Sprintf("%d of %d are shown:\n\n%s", seen, looked, section.Table(rows)))
}

// tableOf reads the rows of the table in a page: by the mistake, the cells beside it.
func tableOf(page string) map[string][]string {
	rows := map[string][]string{}
	_, rest, _ := strings.Cut(page, "<!-- "+sectionName+": begin -->")
	inside, _, _ := strings.Cut(rest, "<!-- "+sectionName+": end -->")
	for line := range strings.Lines(inside) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || strings.Contains(cells[0], "---") {
			continue
		}
		if strings.TrimSpace(cells[1]) == unknown {
			continue
		}
		rows[strings.TrimSpace(cells[0])] = []string{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])}
	}
	return rows
}

// title is how the table calls a mistake.
func (m *mutant) title() string { return m.theme + ": " + m.name }

// none is what a row says where no scenario is named.
const none = "none"

// unknown is what it says until somebody has looked.
const unknown = "not looked for yet"

// cells are those of a row, beside the mistake.
func (f found) cells(m mutant) []string {
	switch {
	case f.err != nil:
		return []string{"ERROR", ""}
	case f.scenario == "":
		return []string{none, m.unseen}
	case f.engine == "lua":
		return []string{f.scenario + " (lua)", f.by}
	}
	return []string{f.scenario, f.by}
}

// look makes a mistake and runs scenarios up to the first that shows it.
func (r *runner) look(ctx context.Context, m mutant) (f found) {
	t := test{dir: "sim", run: "^TestNamedScenarios$", args: []string{"-timeout=300s"}} // seconds, but a busy machine is no hang
	dir, list, err := r.make(ctx, m)
	if err != nil {
		return found{err: err}
	}
	defer os.RemoveAll(dir)
	bin, err := r.build(ctx, dir, t, list)
	if err != nil {
		return found{err: err}
	}
	inGo, lua := false, false // where the mistake is
	for _, e := range m.edits {
		lua = lua || strings.HasPrefix(e.File, "lua/")
		inGo = inGo || !strings.HasPrefix(e.File, "lua/")
	}
	if inGo { // a mistake in a script that has one in its mirror too is looked for where that takes a tenth of the time
		return r.lookWith(ctx, bin, t, "virtual", scenarios[m.theme], m)
	}
	if lua {
		return r.lookWith(ctx, bin, t, "lua", ofScripts, m)
	}
	return found{}
}

// lookWith runs scenarios on an engine, some at a time.
func (r *runner) lookWith(ctx context.Context, bin string, t test, engine string, names []string, m mutant) found {
	const batch = 4
	for some := range slices.Chunk(names, batch) {
		t.extra = []string{"-named=" + engine + ":" + strings.Join(some, ",")}
		out, exit, killed := r.run(ctx, bin, t)
		v := judge(out, exit, killed)
		if ctx.Err() != nil {
			return found{err: context.Cause(ctx)}
		}
		_, name, _ := strings.Cut(v.test, "/")
		switch {
		case v.way == passes:
			continue
		case m.noticed(v) && name != "":
			t.extra = []string{"-named=" + engine + ":" + name}
			if err := r.soundWithout(ctx, t); err != nil {
				return found{err: err}
			}
			return found{engine: engine, scenario: name, by: brokenIn(out)}
		case v.way == panics, v.way == hangs: // a bubble that cannot end
			return found{engine: engine, scenario: strings.Join(some, " or "), by: string(v.way)}
		}
		return found{err: fmt.Errorf("no assertion but %s: %s", v.way, v.why)}
	}
	return found{}
}

var (
	auditLine  = regexp.MustCompile(`(?m)^ *FAIL +audit: .*\n +first at \S+ process \d+: (.*)$`)
	failedLine = regexp.MustCompile(`(?m)^ *FAIL +(\S+ .*?)(?: +is .*)?$`)
)

// brokenIn is what a report says was broken: by the audit, else the first of the expectations.
func brokenIn(report string) string {
	if m := auditLine.FindStringSubmatch(report); m != nil {
		return "audit: " + m[1]
	}
	if m := failedLine.FindStringSubmatch(report); m != nil && !strings.HasPrefix(m[1], "unseed") {
		return strings.Join(strings.Fields(m[1]), " ")
	}
	return ""
}
