package policyfile_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

func TestNilNeverPanics(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	fatal.If(t, os.WriteFile(path, []byte(first), 0o600))
	for _, g := range []*tiered.Group{nil, new(tiered.Group)} {
		f := fatal.Get(policyfile.Load(path))(t)
		if _, err := f.Middleware(g, nil); err == nil {
			t.Errorf("%v has no policies, and is accepted", g)
		}
		w, err := policyfile.Watch(path, g, nil)
		if err == nil {
			t.Errorf("%v is watched", g)
		}
		if w.Reload() == nil || w.File() != nil || w.Group() != nil {
			t.Error("a nil Watcher has a file")
		}
		if a := ask(w.Middleware(nil), http.MethodGet, "/a/"); a != http.StatusServiceUnavailable {
			t.Errorf("a nil Watcher answers %d", a)
		}
		w.Close()
	}
	var f *policyfile.File
	if _, err := f.Middleware(nil, nil); err == nil {
		t.Error("a nil File has limits")
	}
}

func TestNilHandlerIsNotFound(t *testing.T) {
	limit, _ := middleware(t, first, nil)
	if code := ask(limit(nil), http.MethodGet, "/other"); code != http.StatusNotFound {
		t.Errorf("answered with %d", code)
	}
}
