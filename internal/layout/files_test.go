package layout_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// oneWay are the packages whose files use each other in one direction, so that each can be read
// with only those below it in mind, and the uses that are exempt, by the file that uses and the one
// that is used.
var oneWay = map[string]map[[2]string]string{
	"tiered": {},
	"internal/engine": {
		{"engine.go", "schedule.go"}:   "a Group has one",
		{"engine.go", "share.go"}:      "a Limiter has a Standing",
		{"engine.go", "wait_queue.go"}: "a Group has one for each key",
	},
	"internal/report": {},
	"local":           {},
	"remote":          {},
}

func TestFilesUseEachOtherOneWay(t *testing.T) {
	t.Chdir("../..")
	for dir, exempt := range oneWay {
		t.Run(dir, func(t *testing.T) {
			uses := usesOfFiles(t, dir)
			for use, why := range exempt {
				if uses[use] == "" {
					t.Errorf("%s does not use %s (%s): take it out of oneWay", use[0], use[1], why)
				}
				delete(uses, use)
			}
			t.Logf("%d uses, %d of them upwards", len(uses)+len(exempt), len(exempt))
			if circle := findCircle(uses); circle != "" {
				t.Errorf("files use each other in a circle; move a declaration to where it is used:\n%s", circle)
			}
		})
	}
}

// usesOfFiles returns which file of a package uses a declaration of which other one, with the name
// of one such.
func usesOfFiles(t *testing.T, dir string) map[[2]string]string {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", exports(t, dir))}
	pkg, err := config.Check(module+"/"+dir, fset, files, info)
	if err != nil {
		t.Fatal(err)
	}
	file := func(p token.Pos) string { return filepath.Base(fset.Position(p).Filename) }
	uses := map[[2]string]string{}
	for id, used := range info.Uses {
		v, isVar := used.(*types.Var)
		local := isVar && !v.IsField() && v.Parent() != pkg.Scope()
		if from, to := file(id.Pos()), file(used.Pos()); used.Pkg() == pkg && !local && from != to {
			uses[[2]string{from, to}] = id.Name
		}
	}
	return uses
}

// exports returns what opens the compiler's notes on the packages that one imports.
func exports(t *testing.T, dir string) importer.Lookup {
	t.Helper()
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./"+dir).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	paths := map[string]string{}
	for line := range bytes.Lines(out) {
		if path, file, ok := strings.Cut(strings.TrimSpace(string(line)), " "); ok {
			paths[path] = file
		}
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(paths[path]) }
}

// findCircle returns uses that lead from a file back to it, one line each, or "".
func findCircle(uses map[[2]string]string) string {
	next := map[string][]string{}
	for use := range uses {
		next[use[0]] = append(next[use[0]], use[1])
	}
	var path []string
	done := map[string]bool{}
	var visit func(file string) string
	visit = func(file string) (found string) {
		if i := slices.Index(path, file); i >= 0 {
			for from, to := range pairs(append(path[i:], file)) {
				found += fmt.Sprintf("\t%s uses %s of %s\n", from, uses[[2]string{from, to}], to)
			}
			return found
		}
		if done[file] {
			return ""
		}
		done[file] = true
		path = append(path, file)
		for _, other := range slices.Sorted(slices.Values(next[file])) {
			if found = visit(other); found != "" {
				return found
			}
		}
		path = path[:len(path)-1]
		return ""
	}
	for _, file := range slices.Sorted(maps.Keys(next)) {
		if found := visit(file); found != "" {
			return found
		}
	}
	return ""
}

// pairs yields each file of a path with the one after it.
func pairs(path []string) func(yield func(from, to string) bool) {
	return func(yield func(from, to string) bool) {
		for i := range path[1:] {
			if !yield(path[i], path[i+1]) {
				return
			}
		}
	}
}

// TestCircle has a circle behind a path, which is not part of it: a check that cannot fail checks
// nothing.
func TestCircle(t *testing.T) {
	uses := map[[2]string]string{{"a.go", "b.go"}: "B", {"b.go", "c.go"}: "C", {"c.go", "d.go"}: "D", {"a.go", "d.go"}: "D"}
	if got := findCircle(uses); got != "" {
		t.Errorf("found %q, want none", got)
	}
	uses[[2]string{"c.go", "b.go"}] = "B2"
	if got, want := findCircle(uses), "\tb.go uses C of c.go\n\tc.go uses B2 of b.go\n"; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}
