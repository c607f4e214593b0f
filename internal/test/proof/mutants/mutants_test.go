package mutants_test

import (
	_ "embed"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/mutants"
)

const (
	// most is the largest number of entries: more of them take longer than seven minutes.
	most = 149

	// timeout ends a test that a mistake keeps from ending. Without one each takes seconds.
	timeout = "60s"

	// hookFile is a file that test binaries get beside the scripts. It takes another text for one
	// of their files.
	hookFile = "lua/mutant.go"

	hook = `package lua

import (
	"os"
	"strings"
)

func init() {
	file := os.Getenv("MUTANT_FILE")
	if file == "" {
		return
	}
	texts := map[string]*string{
		"lua/call.lua": &callText, "lua/lease.lua": &leaseText, "lua/presence.lua": &presenceText, "lua/standing.lua": &standingText,
	}
	for _, a := range algorithms {
		name := "lua/" + strings.ReplaceAll(a.name, " ", "_")
		texts[name+".lua"], texts[name+"_short.lua"] = a.parts, a.short
	}
	*texts[file] = os.Getenv("MUTANT_TEXT")
	*Presence, *Standing = *newScript(presenceText), *newScript(standingText)
	for i := range scripts {
		*scripts[i] = *newScript(Algorithm(i).text())
	}
}
`
)

var play = flag.Bool("mutants", false, "make each mistake, and run its test")

//go:embed mutants.txt
var text string

// mutant is one mistake.
type mutant struct {
	name string
	dir  string // package of the test that must fail, from the root of the module
	run  string // the test, as after go test -run
	file string // that has the mistake
	edit []mutants.Edit
}

// parse reads the table. An entry is
//
//	== the mistake in a sentence
//	test local TestA/part
//	file local/lease.go
//	  a line of the file that says where
//	- a line that goes
//	+ a line that comes
//
// A blank line ends an edit, and another may follow. Lines that begin with # are comments.
func parse(t *testing.T) (all []mutant) {
	t.Helper()
	inEdit := false
	for line := range strings.SplitSeq(text, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		if word == "==" {
			all = append(all, mutant{name: rest})
		}
		if line == "" || word == "==" || line[0] == '#' {
			inEdit = false
			continue
		}
		m := &all[len(all)-1]
		rest = strings.TrimSpace(rest)
		switch word {
		case "test":
			m.dir, m.run, _ = strings.Cut(rest, " ")
		case "file":
			m.file = rest
		case "", "-", "+":
			if !inEdit {
				m.edit, inEdit = append(m.edit, mutants.Edit{File: m.file, At: m.name}), true
			}
			e := &m.edit[len(m.edit)-1]
			if word != "+" {
				e.Old = append(e.Old, rest)
			}
			if word != "-" {
				e.New = append(e.New, rest)
			}
		default:
			t.Fatalf("%s: %s", m.name, line)
		}
	}
	return all
}

var root = filepath.Join("..", "..", "..", "..")

func read(file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, file))
	return string(b), err
}

// The table is true of the source as it is: each line that goes is there once, and each test is
// there.
func TestTable(t *testing.T) {
	all := parse(t)
	if len(all) > most {
		t.Errorf("%d entries, want %d at most", len(all), most)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if seen[m.name] {
			t.Errorf("%s: twice", m.name)
		}
		seen[m.name] = true
		if _, err := mutants.Apply(m.edit, read); err != nil || len(m.edit) == 0 {
			t.Errorf("%s: %d edits, %v", m.name, len(m.edit), err)
		}
		name, _, _ := strings.Cut(m.run, "/")
		if !hasTest(t, m.dir, name) {
			t.Errorf("%s: package %s has no test %s", m.name, m.dir, name)
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}

func TestMutants(t *testing.T) {
	if !*play {
		t.Skip("takes minutes: make mutants")
	}
	all := parse(t)
	binaries := map[string]string{} // of the packages as they are
	sound := map[string]bool{}      // tests that pass without a mistake
	for _, m := range all {
		if binaries[m.dir] == "" {
			binaries[m.dir] = build(t, m.dir, map[string]string{hookFile: hook})
		}
		if test := m.dir + m.run; !sound[test] {
			sound[test] = true
			out, err := runTest(t, binaries[m.dir], m)
			if err != nil || strings.Contains(out, "no tests to run") || strings.Contains(out, "--- SKIP") {
				t.Fatalf("%s %s does not pass without a mistake: %v\n%s", m.dir, m.run, err, out)
			}
		}
	}
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			changed, err := mutants.Apply(m.edit, read)
			if err != nil {
				t.Fatal(err)
			}
			bin, env := binaries[m.dir], []string(nil)
			if strings.HasSuffix(m.file, ".lua") {
				env = []string{"MUTANT_FILE=" + m.file, "MUTANT_TEXT=" + changed[m.file]}
			} else {
				bin = build(t, m.dir, changed)
			}
			out, err := runTest(t, bin, m, env...)
			judge(t, out, err)
		})
	}
}

// build compiles the tests of a package with changed files, without the symbols that only a
// debugger wants.
func build(t *testing.T, pkg string, changed map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := mutants.Write(abs, dir, changed)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, filepath.Base(pkg)+".test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s -w", "-overlay", list, "-o", bin, "./"+pkg)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("it does not compile: %v\n%s", err, out)
	}
	return bin
}

// runTest runs a test in its package's directory, as go test does.
func runTest(t *testing.T, bin string, m mutant, env ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), bin, "-test.run=^"+m.run, "-test.short", "-test.v", "-test.timeout="+timeout)
	cmd.Dir = filepath.Join(root, m.dir)
	// A history that fails is not to be kept, nor to be shortened for half a minute.
	cmd.Env = append(append(os.Environ(), "RAPID_NOFAILFILE=1", "RAPID_SHRINKTIME=1s"), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// stumbles are failures that say nothing about a rule.
var stumbles = regexp.MustCompile(`(?m)^.*(?:user_script|[Ee]rror compiling|does not load the script|<string>:\d|` +
	`redis-server (?:is not in PATH|does not|ended)|no free loopback port).*$|^panic: .*$|^fatal error: .*$`)

// failure names a test that failed. A test is named before its parts.
var failure = regexp.MustCompile(`--- FAIL: (\S+)`)

func judge(t *testing.T, out string, err error) {
	t.Helper()
	failed := failure.FindAllStringSubmatch(out, -1)
	switch why := stumbles.FindString(out); {
	case err == nil:
		t.Errorf("it survived:\n%s", out)
	case why != "":
		t.Errorf("no assertion failed, but: %s", why)
	case failed == nil:
		t.Errorf("no test failed: %v\n%s", err, out)
	default:
		t.Logf("caught by %s", failed[len(failed)-1][1])
	}
}
