package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/overlay"
)

// fewest is how many mistakes there are at least.
const fewest = 40

// module is what the entries are about.
var module = runner{root: filepath.Join("..", "..")}

// The table says what is so of the source as it is now: each line that goes is there, once, and so are the tests.
func TestTableIsTrue(t *testing.T) {
	all, rules, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < fewest {
		t.Errorf("%d mistakes, want %d at least", len(all), fewest)
	}
	tests := map[string][]string{} // of a package
	for _, m := range all {
		if _, err := overlay.Apply(m.edits, module.read); err != nil {
			t.Error(err)
		}
		for _, x := range m.tests {
			if tests[x.dir] == nil {
				tests[x.dir] = testsOf(t, x.dir)
			}
			// Subtests have names made at run time; that they ran is seen then.
			top, _, _ := strings.Cut(x.run, "/")
			if r := regexp.MustCompile(top); !slices.ContainsFunc(tests[x.dir], r.MatchString) {
				t.Errorf("%s: package %s has no test %s", m.at, x.dir, top)
			}
		}
	}
	bent := map[string]bool{}
	for _, m := range all {
		for _, r := range m.rules {
			bent[r] = true
		}
	}
	for r, text := range rules {
		if !bent[r] {
			t.Errorf("no mistake bends rule %s: %s", r, text)
		}
	}
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testsOf names the tests of a package.
func testsOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(module.root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

const entry = `# a comment
== a mistake
bends  script 1, pot 2
tests  local 'TestA|TestB' -race -count=3
counts panic
file   a/b.go
  here
- this
+ that

- gone
`

func TestParse(t *testing.T) {
	all, err := parse("theme.txt", entry)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	m := all[0]
	if m.name != "a mistake" || m.theme != "theme" || m.at != "theme.txt:2" || !slices.Equal(m.rules, []string{"script 1", "pot 2"}) {
		t.Errorf("%+v", m)
	}
	if len(m.tests) != 1 || m.tests[0].String() != "local TestA|TestB -race -count=3" || !m.tests[0].race() || !slices.Equal(m.counts, []way{panics}) {
		t.Errorf("%+v", m.tests)
	}
	if len(m.edits) != 2 || !slices.Equal(m.edits[0].Old, []string{"here", "this"}) ||
		!slices.Equal(m.edits[0].New, []string{"here", "that"}) || len(m.edits[1].New) != 0 {
		t.Errorf("%+v", m.edits)
	}
}

func TestParseIsStrict(t *testing.T) {
	for _, c := range []struct{ what, with, says string }{
		{"== a mistake\n", "", "t.txt:2: the first entry begins with =="},
		{"bends  script 1, pot 2\n", "", "lacks what it bends"},
		{"tests  local 'TestA|TestB' -race -count=3\n", "", "lacks what it bends, its tests"},
		{"-count=3", "-run=x", `"-run=x" is not an argument`},
		{"local ", "../local ", "not a package of the module"},
		{"'TestA|TestB'", "'Test('", "missing closing )"},
		{"counts panic", "counts luck", "no way to fail"},
		{"counts panic", "counts", "says nothing"},
		{"counts panic", "caught panic", "not a word of an entry"},
		{"file   a/b.go", "file   /a/b.go", "not a source file of the module"},
		{"file   a/b.go", "file   a/b_test.go", "not a source file of the module"},
		{"file   a/b.go\n", "", "a change before its file"},
		{"+ that", "+ this", "changes nothing"},
		{"- gone", "+ gone", "does not say where"},
		{"- gone", "-", "a blank line"},
	} {
		text := strings.Replace(entry, c.what, c.with, 1)
		if _, err := parse("t.txt", text); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q instead of %q: %v, want %q", c.with, c.what, err, c.says)
		}
	}
	for _, text := range []string{"script one   a rule", "script 1", "script 1   a rule\nscript 1   again"} {
		if _, err := parseRules("r.txt", text); err == nil {
			t.Errorf("rules: %q passed", text)
		}
	}
}

func TestApply(t *testing.T) {
	all, err := parse("t.txt", entry)
	if err != nil {
		t.Fatal(err)
	}
	missing := errors.New("missing")
	for _, c := range []struct{ text, want, says string }{
		{"x\n\there\n\tthis\n\tgone\ny\n", "x\nhere\nthat\ny\n", ""},
		{"here\nthis\nhere\nthis\ngone\n", "", "a/b.go has this twice, in lines 1 and 3: here / this"},
		{"here\n\nthis\ngone\n", "", "a/b.go has no such lines any more: here / this"},
		{"here\nthis\ngone()\n", "", "no such lines any more: gone"},
		{"", "", "missing"},
	} {
		changed, err := overlay.Apply(all[0].edits, func(file string) (string, error) {
			if c.text == "" {
				return "", missing
			}
			return c.text, nil
		})
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q: %v, want %q", c.text, err, c.says)
			}
		} else if err != nil || changed["a/b.go"] != c.want {
			t.Errorf("%q: %q, %v", c.text, changed["a/b.go"], err)
		}
	}
}

func TestJudge(t *testing.T) {
	const assertion = "--- FAIL: TestA (0.01s)\n    --- FAIL: TestA/x (0.00s)\n        a_test.go:7: after 12 histories: 3, want 2\n--- FAIL: TestB (0.00s)\nFAIL\n"
	for _, c := range []struct {
		name   string
		out    string
		exit   int
		killed bool
		want   verdict
	}{
		{"passed", "PASS\n", 0, false, verdict{way: passes}},
		{"an assertion", assertion, 1, false, verdict{way: fails, test: "TestA/x", after: "12 histories"}},
		{
			"of rapid", "--- FAIL: TestA (0.01s)\n    a_test.go:7: [rapid] failed after 3 tests: no\nFAIL\n", 1, false,
			verdict{way: fails, test: "TestA", after: "3 tests"},
		},
		{
			"one of a kind", "--- FAIL: TestA (0.01s)\n    a_test.go:7: after 1 schedule: no\nFAIL\n", 1, false,
			verdict{way: fails, test: "TestA", after: "1 schedule"},
		},
		{"no test", "testing: warning: no tests to run\nPASS\n", 0, false, verdict{way: absent, why: "no tests to run"}},
		{
			"a panic", "--- FAIL: TestA (0.00s)\npanic: nil map [recovered]\n\tpanic: nil map\n\ngoroutine 7\n", 2, false,
			verdict{way: panics, test: "TestA", why: "panic: nil map [recovered]"},
		},
		{
			"a panic under rapid", "--- FAIL: TestA (0.00s)\n    a_test.go:7: [rapid] panic after 2 tests: x\n", 1, false,
			verdict{way: panics, test: "TestA", after: "2 tests", why: "a_test.go:7: [rapid] panic after 2 tests: x"},
		},
		{
			"a deadlock", "fatal error: all goroutines are asleep - deadlock!\n", 2, false,
			verdict{way: panics, why: "fatal error: all goroutines are asleep - deadlock!"},
		},
		{"out of time", "panic: test timed out after 1m0s\n\trunning tests:\n", 2, false, verdict{way: hangs}},
		{"killed", "", -1, true, verdict{way: hangs}},
		{
			"a race", "WARNING: DATA RACE\n--- FAIL: TestA (0.00s)\n    testing.go:1712: race detected during execution of test\nFAIL\n", 1, false,
			verdict{way: races, test: "TestA"},
		},
		{
			"a race and an assertion", "WARNING: DATA RACE\n--- FAIL: TestA (0.00s)\n    a_test.go:1: no\n    testing.go:1712: race detected during execution of test\nFAIL\n",
			1, false,
			verdict{way: fails, test: "TestA"},
		},
		{
			"a leak", "PASS\ngoleak: Errors on successful test run\n", 1, false,
			verdict{way: breaks, why: "it ended with a failure, and no test failed: goleak: Errors on successful test run"},
		},
		{
			"no redis-server", "--- FAIL: TestA (0.00s)\n    a_test.go:1: redis-server is not in PATH: install it\nFAIL\n", 1, false,
			verdict{way: breaks, test: "TestA", why: "a_test.go:1: redis-server is not in PATH: install it"},
		},
		{
			"a script that does not load", "--- FAIL: TestA (0.00s)\n    a_test.go:1: redis does not load the script: ERR\nFAIL\n", 1, false,
			verdict{way: breaks, test: "TestA", why: "a_test.go:1: redis does not load the script: ERR"},
		},
		{
			"a script that stumbles", "--- FAIL: TestA (0.00s)\n    a_test.go:1: ERR user_script:7: attempt to compare nil\nFAIL\n", 1, false,
			verdict{way: breaks, test: "TestA", why: "a_test.go:1: ERR user_script:7: attempt to compare nil"},
		},
	} {
		if got := judge(c.out, c.exit, c.killed); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		out  string
		want way
	}{
		{"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n", passes},
		{"=== RUN   TestA\n--- SKIP: TestA (0.00s)\n=== RUN   TestB\n--- PASS: TestB (0.00s)\nPASS\n", absent},
		{"PASS\n", absent},
	} {
		if got := sound(c.out, 0, false); got.way != c.want {
			t.Errorf("%q: %+v, want %s", c.out, got, c.want)
		}
	}
	if got := sound(assertion, 1, false); got.way != fails {
		t.Errorf("%+v, want a failure", got)
	}
}

// Only a mutant whose every test noticed counts.
func TestTable(t *testing.T) {
	two := []test{{dir: "local", run: "TestA"}, {dir: "remote", run: "TestB"}}
	failed := verdict{way: fails, test: "TestA/x", after: "7 fleets"}
	results := []result{
		{mutant: mutant{name: "caught", tests: two}, verdicts: []verdict{failed, {way: fails, test: "TestB"}}},
		{mutant: mutant{name: "one test is blind", tests: two}, verdicts: []verdict{failed, {way: passes}}},
		{mutant: mutant{name: "hangs", tests: two[:1]}, verdicts: []verdict{{way: hangs}}, err: errors.New("no assertion but hang\nmore")},
		{mutant: mutant{name: "may hang", tests: two[:1], counts: []way{hangs}}, verdicts: []verdict{{way: hangs, test: "TestA"}}},
		{mutant: mutant{name: "not tried to the end", tests: two}, verdicts: []verdict{failed}, err: errors.New("does not compile: x")},
	}
	var all []mutant
	for _, r := range results {
		all = append(all, r.mutant)
	}
	var out bytes.Buffer
	table := newTable(&out, all)
	for _, i := range []int{4, 1, 0, 3, 2} { // as they come
		table.add(i, results[i])
	}
	if table.caught != 2 {
		t.Errorf("%d caught, want 2", table.caught)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"mutant → caught by → after n schedules",
		"caught → local TestA/x → after 7 fleets",
		"→ remote TestB → -",
		"one test is blind → SURVIVED remote TestB → -",
		"hangs → ERROR no assertion but hang → -",
		"may hang → local TestA (hang) → -",
		"not tried to the end → ERROR does not compile: x → -",
	} {
		if i >= len(lines) || strings.Join(strings.Fields(lines[i]), " ") != want {
			t.Fatalf("line %d of\n%s\nwant %q", i+1, out.String(), want)
		}
	}
	for _, l := range lines {
		if strings.Index(l, "→") != strings.Index(lines[0], "→") || strings.LastIndex(l, "→") != strings.LastIndex(lines[0], "→") {
			t.Errorf("columns are not aligned:\n%s", out.String())
		}
	}
	if got := fit("äöü-", 3); got != "äö…" {
		t.Errorf("cut to %q", got)
	}
}

// The whole way, on a module of three lines.
func TestTry(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles five test binaries")
	}
	r := runner{root: t.TempDir(), tmp: t.TempDir()}
	for name, text := range map[string]string{
		"go.mod":       "module made.up\n\ngo 1.26\n",
		"a/a.go":       "package a\n\nfunc double(x int) int {\n\treturn 2 * x\n}\n",
		"a/in_test.go": "package a\n\nimport \"testing\"\n\nfunc TestSees(t *testing.T) {\n\tif double(3) != 6 {\n\t\tt.Fatal(\"after 1 states\")\n\t}\n}\n\nfunc TestBlind(t *testing.T) { double(0) }\n\nfunc TestBroken(t *testing.T) { t.Error(double(3)) }\n",
	} {
		file := filepath.Join(r.root, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ change, tests, counts, by, after string }{
		{"return x", "a TestSees", "", "a TestSees", "after 1 states"},
		{"return x", "a TestBlind", "", "SURVIVED a TestBlind", "-"},
		{"return y", "a TestSees", "", "ERROR does not compile: ", "-"},
		{"return x", "a TestNone", "", "ERROR a TestNone does not pass without the mistake: not run  no tests to run", "-"},
		{"return x", "a TestBroken", "", "ERROR a TestBroken does not pass without the mistake: fail TestBroken ", "-"},
		{"panic(x)", "a TestSees", "", "ERROR a TestSees: no assertion but panic: panic: 3 ", "-"},
		{"panic(x)", "a TestSees", "counts panic\n", "a TestSees (panic)", "-"},
	} {
		all, err := parse("t.txt", "== x\nbends  script 1\ntests  "+c.tests+"\n"+c.counts+"file   a/a.go\n- return 2 * x\n+ "+c.change+"\n")
		if err != nil {
			t.Fatal(err)
		}
		res := r.try(t.Context(), all[0])
		got := res.catches()
		if len(got) != 1 || !strings.HasPrefix(got[0].by, c.by) || got[0].after != c.after || res.caught() != (c.after != "-" || c.counts != "") {
			t.Errorf("%s, %s: %q, want %q, %q; %v", c.change, c.tests, got, c.by, c.after, res.err)
		}
	}
}

// A page keeps the rows that were not looked for again, and those whose look failed; mistakes that are no more go.
func TestTableKeepsItsRows(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		if err := os.WriteFile(page, []byte("before\n<!-- scenario-mutants: begin -->\n"+text+"\n<!-- scenario-mutants: end -->\nafter\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("| mistake | shown by | where |\n|---|---|---|\n| life: old | everything | x |\n| life: kept | pause | audit: y |\n| life: failed | steady | z |\n| life: again | none |  |")
	all := []mutant{{theme: "life", name: "kept"}, {theme: "life", name: "failed"}, {theme: "life", name: "again"}, {theme: "life", name: "new"}, {theme: "life", name: "dark", unseen: "why"}}
	results := map[string]found{
		"life: failed": {err: errors.New("no")},
		"life: again":  {engine: "lua", scenario: "login", by: "audit: w"},
		"life: dark":   {},
	}
	if err := writeTable(page, all, results); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n<!-- scenario-mutants: begin -->\n\n3 of 4 are shown:\n\n| mistake | shown by | where |\n|---|---|---|\n| life: kept | pause | audit: y |\n" +
		"| life: failed | steady | z |\n| life: again | login (lua) | audit: w |\n| life: new | not looked for yet |  |\n| life: dark | none | why |\n\n<!-- scenario-mutants: end -->\nafter\n"
	if string(text) != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// What showed a mistake is read off the report: the audit before any expectation.
func TestBrokenIn(t *testing.T) {
	for report, want := range map[string]string{
		"FAIL  over_admission <= 1   is 7\nPASS  x\n\nFAIL  audit: broken at 3 of 9 looks, by up to 2 tokens\n      first at 1.5s process 4: the level is wrong\n": "audit: the level is wrong",
		"        FAIL  shortfall <= 5%   is 7%\nFAIL  unseed ab; again":                                                                                            "shortfall <= 5%",
		"FAIL  unseed ab; again": "",
	} {
		if got := brokenIn(report); got != want {
			t.Errorf("%q, want %q, of\n%s", got, want, report)
		}
	}
}
