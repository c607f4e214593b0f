package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/section"
)

// exposed are the themes whose mistakes a fault may show: those of the lease protocol. Who asks when is a matter of cost,
// what concerns nodes and errors needs a Cluster, certificates or a log to be seen, and the others are not about the limiter.
var exposed = []string{"script", "script-short", "script-sums", "script-time", "settlement", "pot", "outage", "life"}

// scenarios are those of the library that look for mistakes, the likeliest first; the others are slower and show no more.
// They run in batches, so that one which shows something soon is not waited for by many.
var scenarios = []string{
	"full-bucket", "lost-replies", "flapping", "clock-back", "partition-strict", "pause", "crash-loop", "few-calls", "everything",
	"long-outage", "key-flood", "outage-open",
}

// ofScripts are those that are run on the scripts, where a mistake is in them: they take ten times as long.
const ofScripts = 5

// found is what a look for a scenario came to.
type found struct {
	engine, scenario string // empty for none
	err              error
}

// lookAll looks for a scenario for each of the mistakes that a fault may show, and writes the table.
func lookAll(ctx context.Context, r *runner, all []mutant, jobs int, page string) error {
	some := slices.DeleteFunc(slices.Clone(all), func(m mutant) bool { return !slices.Contains(exposed, m.theme) })
	if len(some) == 0 {
		return fmt.Errorf("none of these can a fault show: themes %s", strings.Join(exposed, ", "))
	}
	results := make([]found, len(some))
	var wrong []error
	seen := 0
	each(some, jobs, func(m mutant) found { return r.look(ctx, m) }, func(i int, f found) {
		m := some[i]
		results[i] = f
		switch {
		case f.err != nil:
			wrong = append(wrong, fmt.Errorf("%s: %q: %w", m.at, m.name, f.err))
		case f.scenario != "":
			seen++
			if m.unseen != "" {
				wrong = append(wrong, fmt.Errorf("%s: %q is called unseen, but %s shows it", m.at, m.name, f.scenario))
			}
		}
		fmt.Printf("%s: %s → %s\n", m.theme, m.name, f.text(m))
	})
	fmt.Printf("%d of %d shown by a scenario\n", seen, len(some))
	if page != "-" && ctx.Err() == nil {
		rows := [][]string{{"mistake", "shown by"}}
		for i, m := range some {
			rows = append(rows, []string{m.theme + ": " + m.name, results[i].text(m)})
		}
		wrong = append(wrong, section.Write(page, "scenario-mutants", fmt.Sprintf("%d of %d are shown:\n\n%s", seen, len(some), section.Table(rows))))
	}
	return errors.Join(wrong...)
}

func (f found) text(m mutant) string {
	switch {
	case f.err != nil:
		return "ERROR"
	case f.scenario == "" && m.unseen == "":
		return "none"
	case f.scenario == "":
		return "none: " + m.unseen
	case f.engine == "lua":
		return f.scenario + " (lua)"
	}
	return f.scenario
}

// look makes a mistake and runs scenarios up to the first that shows it.
func (r *runner) look(ctx context.Context, m mutant) (f found) {
	t := test{dir: "sim", run: "^TestNamedScenarios$"}
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
	if inGo {
		f = r.lookWith(ctx, bin, t, "virtual", scenarios, m)
	}
	if lua && f == (found{}) {
		f = r.lookWith(ctx, bin, t, "lua", scenarios[:ofScripts], m)
	}
	return f
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
		switch {
		case v.way == passes:
			continue
		case m.noticed(v):
			_, name, _ := strings.Cut(v.test, "/")
			return found{engine: engine, scenario: name}
		case v.way == panics: // a bubble that cannot end
			return found{engine: engine, scenario: fmt.Sprintf("%s (%s)", some[0], v.way)}
		}
		return found{err: fmt.Errorf("no assertion but %s: %s", v.way, v.why)}
	}
	return found{}
}
