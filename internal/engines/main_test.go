package engines

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

func TestMain(m *testing.M) {
	sim.Child()
	redis.SetLogger(silence{})
	os.Exit(m.Run())
}

// silence is a logger of go-redis that says nothing.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
