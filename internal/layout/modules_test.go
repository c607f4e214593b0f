package layout_test

import (
	"io/fs"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestNestedModulesFollow: the modules that live in this one name it by its path, so each change of its requirements is a
// change of theirs, and `go` refuses to build them until somebody has made it.
func TestNestedModulesFollow(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "go.mod" || path == "go.mod" {
			return err
		}
		found++
		list := exec.CommandContext(t.Context(), "go", "list", "-m", "-mod=readonly", "all")
		list.Dir = filepath.Dir(path)
		if out, err := list.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: run `go mod tidy` there\n%s", path, err, out)
		}
		return nil
	})
	if err != nil || found == 0 {
		t.Fatalf("%d modules found, %v", found, err)
	}
}
