package benchmarks

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// Meter is a hook of go-redis that counts the commands which clients send to a server. INFO would
// also count the commands that scripts call.
type Meter struct{ commands atomic.Int64 }

// DialHook counts nothing.
func (m *Meter) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook counts a command.
func (m *Meter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.commands.Add(1)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook counts the commands of a pipeline, with the MULTI and EXEC of a transaction.
func (m *Meter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		m.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}
