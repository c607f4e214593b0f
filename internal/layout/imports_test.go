// Package layout_test holds the direction of imports, and the modules inside this one.
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
	"slices"
	"strings"
	"testing"
)

// The tests read the module from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

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

// importRule says what the packages that match may import besides the standard library, tests aside.
type importRule struct {
	packages string   // a package below the module, or a tree of them: "x/..."
	ours     []string // packages of this module, in the same form
	modules  []string // of others
}

// importRules is the direction of imports. The first rule that matches a package counts; a package may come later than
// its rule, but not without one. The depguard section of .golangci.yml says the same to editors.
var importRules = []importRule{
	{packages: "lua"},
	{packages: "remote", ours: []string{"lua"}, modules: []string{goRedis}},
	{packages: "local", ours: []string{"lua"}, modules: []string{xTime, golangLRU}},
	{packages: "failover", modules: []string{gobreaker, goRedis}},
	{packages: "tiered", ours: []string{"lua", "local", "remote", "failover"}},
	{packages: "tiered/httplimit", ours: []string{"tiered"}},
	{packages: "tiered/debugpage", ours: []string{"tiered"}},
	{packages: "sim/internal/stable"},
	// For anybody's client: the standard library only, but for hashes.
	{packages: "sim/faultnet", ours: []string{"sim/internal/stable"}},
	{packages: "sim/scenario"}, // data: the standard library only
	{packages: "sim/library"},  // texts
	{packages: "sim/...", ours: []string{"sim/...", "lua", "remote", "local", "failover", "tiered/...", "internal/ideal", "internal/invariant", "internal/redistest", "internal/watch"}, modules: []string{anything}},
	{packages: "cmd/...", ours: []string{"sim/..."}, modules: []string{anything}},
	{packages: "examples/...", ours: []string{"tiered/...", "remote"}, modules: []string{anything}},
	// Only tests import internal packages, but for the simulator, which measures with the yardsticks and starts servers; and they each other.
	// A judge must not share the defendant's code: what says how it ought to be knows the protocol's types at most.
	{packages: "internal/ideal"},
	{packages: "internal/invariant", ours: []string{"lua"}},
	// The adversary owns what lies between the tiers, so it sees them.
	{packages: "internal/adversary", ours: []string{"lua", "local", "remote", "internal/ideal", "internal/invariant"}, modules: []string{anything}},
	{packages: "internal/legal", ours: []string{"lua", "local", "remote", "tiered", "internal/ideal", "internal/invariant", "internal/watch"}, modules: []string{anything}},
	{packages: "internal/watch", ours: []string{"lua", "remote"}},
	{packages: "internal/rehearsal", ours: []string{"sim/measure", "sim/scenario"}},
	{packages: "internal/fleet", ours: []string{"tiered", "remote", "sim/faultnet", "internal/ideal", "internal/watch"}, modules: []string{anything}},
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
			problems = append(problems, "package "+name+" has no rule: say in importRules of internal/layout, and under depguard in .golangci.yml, what it may import")
			continue
		}
		rule := importRules[i]
		for _, path := range p.Imports {
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

// checkBinary looks at all that comes with package tiered, however far down, and names one way in per foreign module.
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

// listPackages lists the packages of the module and all that they import, as seen by a program for system. What does not
// compile is not its business, hence -e.
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

// watchSources opens each directory of the module. The go command reuses the result of a test until something changes
// that the test itself has opened; what go list reads does not count.
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

// TestImportsBroken breaks each rule on a made-up graph: a check that cannot fail checks nothing.
func TestImportsBroken(t *testing.T) {
	pkg := func(path, mod string, imports ...string) goPackage {
		p := goPackage{ImportPath: path, Imports: imports, Standard: mod == ""}
		if mod != "" {
			p.Module = &struct{ Path string }{mod}
		}
		return p
	}
	our := func(name string, imports ...string) goPackage {
		for i, im := range imports {
			if after, ok := strings.CutPrefix(im, "our/"); ok {
				imports[i] = module + "/" + after
			}
		}
		return pkg(module+"/"+name, module, imports...)
	}
	const miniredis = "github.com/alicebob/miniredis/v2"
	// What is imported below, and stays as it is.
	world := []goPackage{
		pkg("fmt", "", "internal/fmtsort"), pkg("internal/fmtsort", ""),
		pkg(goRedis, goRedis, "fmt", goRedis+"/internal"), pkg(goRedis+"/internal", goRedis, "github.com/cespare/xxhash/v2"),
		pkg("github.com/cespare/xxhash/v2", "github.com/cespare/xxhash/v2"),
		pkg(xTime+"/rate", xTime), pkg(golangLRU+"/simplelru", golangLRU), pkg(gobreaker, gobreaker),
		pkg(miniredis, miniredis), pkg(cobra, cobra),
	}
	healthy := []goPackage{
		our("lua", "fmt"),
		our("remote", "fmt", "our/lua", goRedis),
		our("local", "fmt", xTime+"/rate", golangLRU+"/simplelru"),
		our("failover", gobreaker, goRedis),
		our("tiered", "fmt", "our/local", "our/remote", "our/failover"),
		our("tiered/httplimit", "our/tiered"),
		our("sim", "our/tiered", "our/remote", "our/local", "our/failover", "our/lua", "our/sim/scenario", "our/internal/ideal", miniredis),
		our("sim/scenario", "fmt"),
		our("sim/library", "fmt"),
		our("sim/faultnet", "fmt"),
		our("cmd/tiersim", "our/sim", cobra),
		our("examples/quickstart", "our/tiered", "our/tiered/httplimit", "our/remote", goRedis),
		our("internal/ideal", "fmt"),
		our("internal/redistest", "our/internal/ideal", goRedis),
		pkg(module, module),
	}

	for _, c := range []struct {
		name    string
		changed []goPackage // take the place of those of the same path, or come in addition
		want    []string
	}{
		{name: "healthy"},
		{name: "lua imports ours", changed: []goPackage{our("lua", "our/remote")}, want: []string{"lua must not import remote"}},
		{name: "lua imports others", changed: []goPackage{our("lua", goRedis)}, want: []string{"lua must not import " + goRedis + " of module " + goRedis}},
		{name: "remote imports local", changed: []goPackage{our("remote", "our/local")}, want: []string{"remote must not import local"}},
		{name: "remote imports failover", changed: []goPackage{our("remote", "our/failover")}, want: []string{"remote must not import failover"}},
		{
			name: "remote imports others", changed: []goPackage{our("remote", xTime+"/rate")},
			want: []string{"remote must not import " + xTime + "/rate of module " + xTime},
		},
		{name: "local imports remote", changed: []goPackage{our("local", "our/remote")}, want: []string{"local must not import remote"}},
		{name: "local imports tiered", changed: []goPackage{our("local", "our/tiered")}, want: []string{"local must not import tiered"}},
		{
			name: "local imports others", changed: []goPackage{our("local", gobreaker)},
			want: []string{"local must not import " + gobreaker + " of module " + gobreaker},
		},
		{name: "failover imports local", changed: []goPackage{our("failover", "our/local")}, want: []string{"failover must not import local"}},
		{
			name: "failover imports others", changed: []goPackage{our("failover", golangLRU+"/simplelru")},
			want: []string{"failover must not import " + golangLRU + "/simplelru of module " + golangLRU},
		},
		{name: "tiered imports its adapter", changed: []goPackage{our("tiered", "our/tiered/httplimit")}, want: []string{"tiered must not import tiered/httplimit"}},
		{
			name: "tiered imports a library of another tier", changed: []goPackage{our("tiered", goRedis)},
			want: []string{"tiered must not import " + goRedis + " of module " + goRedis},
		},
		{name: "tiered imports sim", changed: []goPackage{our("tiered", "our/sim/scenario")}, want: []string{"tiered must not import sim/scenario"}},
		{name: "httplimit imports remote", changed: []goPackage{our("tiered/httplimit", "our/remote")}, want: []string{"tiered/httplimit must not import remote"}},
		{
			name: "httplimit imports others", changed: []goPackage{our("tiered/httplimit", cobra)},
			want: []string{"tiered/httplimit must not import " + cobra + " of module " + cobra},
		},
		{name: "an example imports sim", changed: []goPackage{our("examples/quickstart", "our/sim")}, want: []string{"examples/quickstart must not import sim"}},
		{name: "a command imports tiered", changed: []goPackage{our("cmd/tiersim", "our/tiered")}, want: []string{"cmd/tiersim must not import tiered"}},
		{name: "tiered imports internal", changed: []goPackage{our("tiered", "our/internal/ideal")}, want: []string{"tiered must not import internal/ideal"}},
		{name: "sim imports internal", changed: []goPackage{our("sim", "our/internal/fleet")}, want: []string{"sim must not import internal/fleet"}},
		{
			name: "faultnet imports", changed: []goPackage{our("sim/faultnet", "our/sim/scenario", goRedis)},
			want: []string{"sim/faultnet must not import sim/scenario", "sim/faultnet must not import " + goRedis + " of module " + goRedis},
		},
		{
			name: "the language imports what it speaks of", changed: []goPackage{our("sim/scenario", "our/sim", "our/tiered", goRedis)},
			want: []string{
				"sim/scenario must not import sim", "sim/scenario must not import tiered",
				"sim/scenario must not import " + goRedis + " of module " + goRedis,
			},
		},
		{name: "texts import their language", changed: []goPackage{our("sim/library", "our/sim/scenario")}, want: []string{"sim/library must not import sim/scenario"}},
		{
			name: "sim has a command line", changed: []goPackage{our("sim", cobra, progressbar), pkg(progressbar, progressbar)},
			want: []string{"sim must not import " + cobra + " of module " + cobra, "sim must not import " + progressbar + " of module " + progressbar},
		},
		{name: "internal imports tiered", changed: []goPackage{our("internal/ideal", "our/tiered")}, want: []string{"internal/ideal must not import tiered"}},
		{name: "the top imports", changed: []goPackage{pkg(module, module, module+"/tiered")}, want: []string{". must not import tiered"}},
		{
			name: "no rule", changed: []goPackage{our("util")},
			want: []string{"package util has no rule: say in importRules of internal/layout, and under depguard in .golangci.yml, what it may import"},
		},
		{
			name: "a similar name is another package", changed: []goPackage{our("luathings")},
			want: []string{"package luathings has no rule: say in importRules of internal/layout, and under depguard in .golangci.yml, what it may import"},
		},
		{
			name: "a dependency grows one of its own", changed: []goPackage{pkg("github.com/cespare/xxhash/v2", "github.com/cespare/xxhash/v2", cobra)},
			want: []string{"module " + cobra + " would be in every user's binary: github.com/cespare/xxhash/v2 imports " + cobra},
		},
		{
			name: "the simulator's dependency in the library", changed: []goPackage{our("local", miniredis)},
			want: []string{
				"local must not import " + miniredis + " of module " + miniredis,
				"module " + miniredis + " would be in every user's binary: " + module + "/local imports " + miniredis,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			graph := slices.Clone(c.changed)
			for _, p := range slices.Concat(healthy, world) {
				if !slices.ContainsFunc(c.changed, func(q goPackage) bool { return q.ImportPath == p.ImportPath }) {
					graph = append(graph, p)
				}
			}
			if got := append(checkDirection(graph), checkBinary(graph)...); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}
