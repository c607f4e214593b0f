// Package layout_test checks the direction of imports, and the modules inside this one.
package layout_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tiered-limiter/tiered-limiter"

// Modules outside the standard library.
const (
	goRedis     = "github.com/redis/go-redis/v9"
	xTime       = "golang.org/x/time"
	golangLRU   = "github.com/hashicorp/golang-lru/v2"
	gobreaker   = "github.com/sony/gobreaker/v2"
	cobra       = "github.com/spf13/cobra"
	progressbar = "github.com/schollz/progressbar/v3"
	anything    = "*" // for what is never compiled into a user's binary
)

// importRule says what the packages that match may import besides the standard library, tests
// aside.
type importRule struct {
	packages string   // a package below the module, or a tree of them: "x/..."
	ours     []string // packages of this module, in the same form
	modules  []string // of others
}

// importRules is the direction of imports. The first rule that matches a package counts; a package
// may come later than its rule, but not without one.
var importRules = []importRule{
	{packages: "lua"},
	{packages: "internal/model", ours: []string{"lua"}}, // remote.NewMemory is its door, for everybody
	{packages: "remote", ours: []string{"lua", "internal/model"}, modules: []string{goRedis}},
	{packages: "internal/fifo"},
	{packages: "local", ours: []string{"lua", "internal/fifo"}, modules: []string{xTime, golangLRU}},
	{packages: "failover", modules: []string{gobreaker, goRedis}},
	{packages: "internal/histogram"},
	{packages: "internal/defaults"}, // of options, for what must know them beside tiered
	{packages: "internal/dispatch", ours: []string{"lua", "remote", "failover", "internal/histogram"}},
	{packages: "internal/standing", ours: []string{"lua"}},
	{packages: "internal/places", ours: []string{"lua"}},
	{packages: "internal/calendar"}, // when the months of a time zone begin
	{packages: "internal/report", ours: []string{"failover", "internal/dispatch", "internal/histogram"}},
	{
		packages: "internal/engine",
		ours: []string{
			"lua", "local", "remote", "failover", "internal/dispatch", "internal/standing", "internal/report", "internal/fifo", "internal/defaults",
			"internal/calendar",
		},
		modules: []string{xTime}, // it paces the calls that tell of debts
	},
	{
		packages: "tiered",
		ours: []string{
			"lua", "local", "remote", "failover", "internal/dispatch", "internal/standing", "internal/report", "internal/engine",
			"internal/ratetext", "internal/histogram", "internal/defaults", "internal/calendar",
		},
	},
	{
		packages: "tiered/atonce",
		ours: []string{
			"lua", "remote", "failover", "tiered", "internal/dispatch", "internal/engine", "internal/fifo", "internal/places",
		},
	},
	{packages: "internal/misspelled"}, // the name that a misspelled one was meant to be
	// What texts of limits and scenarios have in common.
	{packages: "internal/ratetext", ours: []string{"internal/misspelled"}},
	{packages: "internal/strictyaml", modules: []string{"go.yaml.in/yaml/v3"}},
	{packages: "internal/filechanges"}, // of files that may change
	{packages: "internal/canonical"},   // what clients send, in one spelling
	// For middleware and interceptors.
	{packages: "internal/rules", ours: []string{"tiered", "tiered/atonce", "internal/canonical", "internal/defaults"}},
	{packages: "tiered/httplimit", ours: []string{"tiered", "tiered/atonce", "internal/canonical", "internal/rules", "internal/defaults"}},
	{packages: "internal/fasthttpadapter", ours: []string{"tiered", "tiered/httplimit"}}, // for adapters
	{packages: "tiered/debugpage", ours: []string{"lua", "tiered", "internal/defaults"}},
	{packages: "tiered/metrics", ours: []string{"tiered"}},              // for exporters
	{packages: "tiered/tieredtest", ours: []string{"tiered", "remote"}}, // for tests of users
	{
		packages: "tiered/policyfile",
		ours: []string{
			"lua", "tiered", "tiered/atonce", "tiered/httplimit", "remote", "internal/strictyaml", "internal/canonical", "internal/misspelled", "internal/filechanges",
			"internal/defaults",
		},
		modules: []string{"go.yaml.in/yaml/v3", "github.com/fsnotify/fsnotify"},
	},
	{packages: "sim/internal/stable"},
	// For anybody's client: the standard library only, but for hashes.
	{packages: "sim/faultnet", ours: []string{"sim/internal/stable"}},
	{ // data, with limits in the words of tiered
		packages: "sim/scenario",
		ours:     []string{"tiered", "lua", "internal/misspelled", "internal/ratetext", "internal/strictyaml"},
		modules:  []string{"go.yaml.in/yaml/v3"},
	},
	{
		packages: "sim/...",
		ours: []string{
			"sim/...", "lua", "remote", "local", "failover", "tiered/...",
			"internal/misspelled", "internal/defaults", "internal/test/proof/ideal", "internal/test/proof/invariant",
			"internal/test/rig/watch",
		},
		modules: []string{anything},
	},
	{packages: "cmd/...", ours: []string{"sim/...", "tiered", "tiered/policyfile"}, modules: []string{anything}},
	{packages: "examples/...", ours: []string{"tiered/...", "remote"}, modules: []string{anything}},
	// Only tests import the other internal packages, and the simulator, which measures with the
	// yardsticks and starts servers. A judge must not share the defendant's code: it knows the
	// protocol's types at most.
	{packages: "internal/test/proof", ours: []string{"tiered"}},
	{packages: "internal/test/proof/ideal"},
	{packages: "internal/test/proof/invariant", ours: []string{"lua"}},
	// The adversary owns what lies between the tiers, so it sees them.
	{
		packages: "internal/test/proof/adversary",
		ours:     []string{"internal/fifo", "lua", "local", "remote", "internal/test/proof", "internal/test/proof/ideal", "internal/test/proof/invariant"},
		modules:  []string{anything},
	},
	{
		packages: "internal/test/proof/adversary/shares",
		ours:     []string{"lua", "remote", "internal/test/proof/adversary", "internal/test/proof/ideal", "internal/standing"},
	},
	{
		packages: "internal/test/proof/legal",
		ours: []string{
			"lua", "local", "remote", "tiered", "tiered/atonce", "tiered/httplimit", "internal/test/proof/ideal", "internal/test/proof", "internal/test/proof/invariant", "internal/test/rig/manynodes",
			"internal/test/rig/watch", "internal/defaults", "sim/faultnet",
		},
		modules: []string{anything},
	},
	{packages: "internal/test/proof/answers", ours: []string{"lua", "remote", "tiered", "internal/test/proof"}},
	{packages: "internal/test/rig/watch", ours: []string{"lua", "remote"}},
	{packages: "internal/test/rig/manynodes", ours: []string{"lua", "remote"}},
	{
		packages: "internal/test/rig/adapters",
		ours:     []string{"remote", "tiered", "tiered/atonce", "tiered/httplimit", "internal/test/rig/fatal", "internal/test/rig/testgroup", "internal/test/rig/watch"},
	},
	{packages: "internal/test/rig/testgroup", ours: []string{"remote", "tiered", "internal/test/rig/fatal"}},
	{
		packages: "internal/test/rig/spelling",
		ours:     []string{"remote", "tiered/policyfile", "internal/test/rig/fatal", "internal/test/rig/testgroup"},
	},
	{
		packages: "internal/test/rig/fleet",
		ours: []string{
			"lua", "remote", "tiered", "sim/faultnet",
			"internal/test/proof/ideal", "internal/test/proof/invariant", "internal/test/rig/fatal", "internal/test/rig/redistest",
			"internal/test/rig/watch",
		},
		modules: []string{anything},
	},
	{packages: "internal/...", ours: []string{"internal/..."}, modules: []string{anything}},
	{packages: "."},    // the acceptance tests
	{packages: "docs"}, // tests
}

// userModules are the modules that a program may contain because it imports package tiered.
var userModules = []string{
	goRedis, xTime, golangLRU, gobreaker,
	"github.com/cespare/xxhash/v2", // of go-redis, as are the next
	"github.com/dgryski/go-rendezvous",
	"go.uber.org/atomic",
	"golang.org/x/sys",
}

// commandModules are for programs only: what a user imports into tests has no command line.
var commandModules = []string{cobra, progressbar}

// systems have files of their own, and so may have imports of their own.
var systems = []string{"linux", "darwin", "windows"}

// goPackage is what go list says of a package. Imports are those of its non-test files.
type goPackage struct {
	ImportPath string
	Imports    []string
	Standard   bool
	Module     *struct{ Path string }
}

func TestImports(t *testing.T) {
	t.Chdir("../..") // os.Chdir in a TestMain would hide from the go command which files the tests open
	watchSources(t)
	for _, system := range systems {
		t.Run(system, func(t *testing.T) {
			graph := listPackages(t, system)
			if len(graph) == 0 || !slices.ContainsFunc(graph, func(p goPackage) bool { return p.ImportPath == module+"/tiered" }) {
				t.Fatalf("go list does not know %s/tiered", module)
			}
			for _, problem := range append(checkDirection(graph), checkBinary(graph)...) {
				t.Error(problem)
			}
		})
	}
}

// checkDirection holds each package of the module against its rule.
func checkDirection(graph []goPackage) (problems []string) {
	modules := map[string]string{} // import path → module path
	for _, p := range graph {
		if p.Module != nil {
			modules[p.ImportPath] = p.Module.Path
		}
	}
	for _, p := range graph {
		name, ok := below(p.ImportPath)
		if !ok {
			continue
		}
		i := slices.IndexFunc(importRules, func(r importRule) bool { return matches(r.packages, name) })
		if i < 0 {
			problems = append(problems, "package "+name+" has no rule: say in importRules of internal/layout what it may import")
			continue
		}
		rule := importRules[i]
		for _, path := range p.Imports {
			// A program runs scenarios too; sim/internal/bubble has the one test that virtual time
			// takes.
			if path == "testing" && name != "sim/internal/bubble" && name != "tiered/tieredtest" && !strings.HasPrefix(name, "internal/") {
				problems = append(problems, name+" must not import testing")
			}
			if imported, ok := below(path); ok {
				if !slices.ContainsFunc(rule.ours, func(pattern string) bool { return matches(pattern, imported) }) {
					problems = append(problems, name+" must not import "+imported)
				}
				continue
			}
			m, ok := modules[path]
			allowed := slices.Contains(rule.modules, m) || slices.Contains(rule.modules, anything) &&
				(!slices.Contains(commandModules, m) || strings.HasPrefix(name, "cmd/"))
			if ok && !allowed {
				problems = append(problems, name+" must not import "+path+" of module "+m)
			}
		}
	}
	return problems
}

// checkBinary looks at all that comes with package tiered, however far down, and names one way in
// per foreign module.
func checkBinary(graph []goPackage) (problems []string) {
	packages := map[string]goPackage{}
	for _, p := range graph {
		packages[p.ImportPath] = p
	}
	importedBy := map[string]string{}
	for next := []string{module + "/tiered"}; len(next) > 0; next = next[1:] {
		for _, path := range packages[next[0]].Imports {
			if _, seen := importedBy[path]; !seen {
				importedBy[path] = next[0]
				next = append(next, path)
			}
		}
	}
	known := append([]string{module}, userModules...)
	for _, path := range slices.Sorted(maps.Keys(importedBy)) {
		if m := packages[path].Module; m != nil && !slices.Contains(known, m.Path) {
			known = append(known, m.Path)
			problems = append(problems, "module "+m.Path+" would be in every user's binary: "+importedBy[path]+" imports "+path)
		}
	}
	return problems
}

// below is a package's path below the module: "." for the module's own.
func below(path string) (name string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

func matches(pattern, name string) bool {
	tree, isTree := strings.CutSuffix(pattern, "/...")
	return name == tree || isTree && strings.HasPrefix(name, tree+"/")
}

// listPackages lists the packages of the module and all that they import, as seen by a program for
// system. What does not compile is not its business, hence -e.
func listPackages(t *testing.T, system string) (graph []goPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-json=ImportPath,Imports,Standard,Module", "./...")
	cmd.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return graph
		} else if err != nil {
			t.Fatal(err)
		}
		graph = append(graph, p)
	}
}

// watchSources opens each directory of the module. The go command reuses the result of a test until
// something changes that the test itself has opened; what go list reads does not count.
func watchSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestImportsBroken breaks each kind of rule on a made-up graph: a check that cannot fail checks
// nothing.
func TestImportsBroken(t *testing.T) {
	pkg := func(path, mod string, imports ...string) goPackage {
		p := goPackage{ImportPath: path, Imports: imports, Standard: mod == ""}
		if mod != "" {
			p.Module = &struct{ Path string }{mod}
		}
		return p
	}
	our := func(name string, imports ...string) goPackage { return pkg(module+"/"+name, module, imports...) }
	const tiered, xxhash = module + "/tiered", "github.com/cespare/xxhash/v2"
	healthy := []goPackage{
		pkg("fmt", ""), pkg(goRedis, goRedis, "fmt", xxhash), pkg(xxhash, xxhash), pkg(gobreaker, gobreaker), pkg(cobra, cobra),
		our("lua", "fmt"),
		our("remote", "fmt", module+"/lua", goRedis),
		our("failover", gobreaker, goRedis),
		our("tiered", "fmt", module+"/remote", module+"/failover"),
		our("sim", tiered, module+"/internal/test/proof/ideal", gobreaker),
		our("cmd/tiersim", module+"/sim", cobra),
		pkg(module, module),
	}
	for _, c := range []struct {
		name    string
		changed goPackage // takes the place of that of the same path, or comes in addition
		want    []string
	}{
		{name: "healthy", changed: healthy[0]},
		{"a package of ours", our("remote", module+"/failover"), []string{"remote must not import failover"}},
		{
			"a module of others", our("remote", gobreaker),
			[]string{"remote must not import " + gobreaker + " of module " + gobreaker},
		},
		{
			"a tree", our("sim", module+"/internal/test/rig/redistest"),
			[]string{"sim must not import internal/test/rig/redistest"},
		},
		{"the top", pkg(module, module, tiered), []string{". must not import tiered"}},
		{"a command line", our("sim", cobra), []string{"sim must not import " + cobra + " of module " + cobra}},
		{
			"a similar name", our("luathings"),
			[]string{"package luathings has no rule: say in importRules of internal/layout what it may import"},
		},
		{
			"a dependency of a dependency", pkg(xxhash, xxhash, cobra),
			[]string{"module " + cobra + " would be in every user's binary: " + xxhash + " imports " + cobra},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			graph := []goPackage{c.changed}
			for _, p := range healthy {
				if p.ImportPath != c.changed.ImportPath {
					graph = append(graph, p)
				}
			}
			if got := append(checkDirection(graph), checkBinary(graph)...); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// TestDirections holds the rules that users rely on against the table itself.
func TestDirections(t *testing.T) {
	for _, c := range []struct{ from, to string }{
		{"lua", "remote"},
		{"internal/model", "remote"},
		{"local", "internal/model"},
		{"tiered", "internal/model"},
		{"remote", "local"},
		{"local", "remote"},
		{"local", "tiered"},
		{"failover", "local"},
		{"tiered", "tiered/httplimit"},
		{"tiered", "sim/scenario"},
		{"tiered", "internal/test/proof/ideal"},
		{"tiered/httplimit", "remote"},
		{"sim/scenario", "sim"},
		{"sim/scenario", "remote"},
		{"sim/faultnet", "sim/scenario"},
		{"sim", "internal/test/rig/redistest"},
		{"cmd/tiersim", "remote"},
		{"examples/quickstart", "sim"},
		{"internal/test/proof/ideal", "tiered"},
		{"local", gobreaker},
		{"failover", golangLRU},
		{"tiered", goRedis},
		{"tiered/httplimit", cobra},
		{"lua", goRedis},
		{"sim/scenario", goRedis},
		{"sim/faultnet", goRedis},
		{"sim", progressbar},
		{"remote", xTime},
	} {
		to := goPackage{ImportPath: c.to, Module: &struct{ Path string }{c.to}}
		if !strings.Contains(c.to, ".") {
			to = goPackage{ImportPath: module + "/" + c.to, Module: &struct{ Path string }{module}}
		}
		from := goPackage{ImportPath: module + "/" + c.from, Imports: []string{to.ImportPath}, Module: &struct{ Path string }{module}}
		if len(checkDirection([]goPackage{from, to})) == 0 {
			t.Errorf("%s may import %s", c.from, c.to)
		}
	}
}

// TestNestedModulesFollow: the modules that live in this one name it by its path, so each change of
// its requirements is a change of theirs, and `go` refuses to build them until somebody has made
// it.
func TestNestedModulesFollow(t *testing.T) {
	t.Chdir("../..")
	for _, file := range nestedModules(t) {
		list := exec.CommandContext(t.Context(), "go", "list", "-m", "-mod=readonly", "all")
		list.Dir = filepath.Dir(file)
		if out, err := list.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: run `go mod tidy` there\n%s", file, err, out)
		}
	}
}

// TestNestedModulesRequireTheRelease: a user's build ignores the replace lines of the modules that
// it fetches. So each module requires this one, and its siblings, in the newest version of
// CHANGELOG.md, and all of them are released together.
func TestNestedModulesRequireTheRelease(t *testing.T) {
	t.Chdir("../..")
	changes, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`(?m)^## (v\d+\.\d+\.\d+)\b`).FindSubmatch(changes)
	if heading == nil {
		t.Fatal("CHANGELOG.md has no heading of a version")
	}
	newest, required := string(heading[1]), 0
	for _, file := range nestedModules(t) {
		out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", file).Output()
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var m struct {
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal(out, &m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, r := range m.Require {
			if r.Path != module && !strings.HasPrefix(r.Path, module+"/") {
				continue
			}
			required++
			if r.Version != newest {
				t.Errorf("%s requires %s %s: must be %s, the newest version of CHANGELOG.md", file, r.Path, r.Version, newest)
			}
		}
	}
	if required == 0 {
		t.Error("no module requires this one")
	}
}

// nestedModules returns the go.mod files below the root, which is the working directory.
func nestedModules(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "go.mod" && path != "go.mod" {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d modules found, %v", len(files), err)
	}
	return files
}
