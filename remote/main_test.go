package remote_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No test may leave a goroutine: the store owns none, and go-redis' end with their clients. One of
// them is late: a pool that cannot dial looks once a second whether it was closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}
