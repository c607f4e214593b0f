package benchmarks

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would write a line for each failed dial, and some are wanted here
	os.Exit(m.Run())
}
