// Package testgroup makes Groups and Limiters for the tests of what stands around package tiered.
package testgroup

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// patient is the Budget of a test that does not say one: a busy machine is no outage.
const patient = 5 * time.Second

// New returns a Group on a store with these policies. It is closed at the end of the test. Without
// options it logs nothing.
func New(t testing.TB, store remote.Store, o *tiered.Options, policies ...tiered.Policy) *tiered.Group {
	t.Helper()
	if o == nil {
		o = &tiered.Options{Logger: slog.New(slog.DiscardHandler)}
	}
	if o.Budget == 0 {
		with := *o
		with.Budget = patient
		o = &with
	}
	g := fatal.Get(tiered.NewGroup(store, o))(t)
	t.Cleanup(func() { _ = g.Close(context.Background()) })
	for _, p := range policies {
		NewLimiter(t, g, p)
	}
	return g
}

// NewLimiter adds a policy to a Group.
func NewLimiter(t testing.TB, g *tiered.Group, p tiered.Policy) *tiered.Limiter {
	t.Helper()
	return fatal.Get(g.NewLimiter(p))(t)
}

// Limiter returns a Limiter in memory, in a Group of its own.
func Limiter(t testing.TB, p tiered.Policy) *tiered.Limiter {
	t.Helper()
	return NewLimiter(t, New(t, remote.NewMemory(), nil), p)
}

// Of returns the Limiter of a policy of a Group.
func Of(t testing.TB, g *tiered.Group, policy string) *tiered.Limiter {
	t.Helper()
	l, ok := g.Limiter(policy)
	if !ok {
		t.Fatalf("no policy %q", policy)
	}
	return l
}
