package docs_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// From docs/configuration.md.

func fromFile(store remote.Store, api http.Handler) (*tiered.Group, http.Handler, error) {
	group, err := tiered.NewGroup(store, nil)
	if err != nil {
		return nil, nil, err
	}
	watcher, err := policyfile.Watch("/etc/limits/policies.yaml", group, nil)
	if err != nil {
		return nil, nil, err
	}
	return group, watcher.Middleware(api), nil
}

// The page's file is a file, and its code compiles.
func TestConfigurationPage(t *testing.T) {
	whole, exceptions, _ := strings.Cut(read(t, "configuration.md"), "## Exceptions for addresses")
	f := fatal.Get(policyfile.Parse("configuration.md", []byte(block(t, whole, "yaml"))))(t)
	e, err := policyfile.Parse("configuration.md", []byte(block(t, exceptions, "yaml")))
	if err != nil || len(e.HTTP[0].Ranges) != 4 {
		t.Errorf("%v, %v", e, err)
	}
	if len(f.Policies) != 2 || len(f.HTTP) != 1 {
		t.Errorf("%+v", f)
	}
	group, _, err := fromFile(remote.NewMemory(), nil)
	if err == nil {
		t.Error("there is such a file")
		_ = group.Close(context.Background())
	}
}
