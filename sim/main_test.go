package sim

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Child()
	redis.SetLogger(silence{})
	goleak.VerifyTestMain(m)
}
