package sim

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
)

func TestMain(m *testing.M) {
	Child()
	redis.SetLogger(harness.Silent{})
	goleak.VerifyTestMain(m)
}
