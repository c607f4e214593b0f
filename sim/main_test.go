package sim

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Child()
	redis.SetLogger(silence{})
	if os.Getenv(childVariable) != "" {
		hourLong()
	}
	goleak.VerifyTestMain(m)
}
