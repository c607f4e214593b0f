package benchmarks

import (
	"os"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"github.com/zeromicro/go-zero/core/logx"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis would write a line for each failed dial, and some are wanted here
	logx.Disable()    // go-zero writes figures of its own to where ours go
	os.Exit(m.Run())
}
