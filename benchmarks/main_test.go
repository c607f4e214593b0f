package benchmarks

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/logx"
)

// silent is the logger of go-redis, which has one for all clients and tells of each failed dial: some are wanted here.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	logx.Disable() // go-zero writes figures of its own to where ours go
	os.Exit(m.Run())
}
