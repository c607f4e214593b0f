package metrics_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var errRefused = errors.New("connection refused")

// newGroup returns a Group on a store in memory with these policies. It is closed at the end of the test.
func newGroup(t *testing.T, store *remote.Memory, policies ...tiered.Policy) *tiered.Group {
	t.Helper()
	g, err := tiered.NewGroup(store, &tiered.Options{Processes: 2, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	for _, p := range policies {
		if _, err := g.NewLimiter(p); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func limiter(t *testing.T, g *tiered.Group, name string) *tiered.Limiter {
	t.Helper()
	l, ok := g.Limiter(name)
	if !ok {
		t.Fatalf("no policy %q", name)
	}
	return l
}
