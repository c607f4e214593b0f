package metrics_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

var errRefused = errors.New("connection refused")

// newGroup returns a Group of two processes with these policies.
func newGroup(t *testing.T, store *remote.Memory, policies ...tiered.Policy) *tiered.Group {
	t.Helper()
	return testgroup.New(t, store, &tiered.Options{Processes: 2, Logger: slog.New(slog.DiscardHandler)}, policies...)
}
