package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/grpclog"
)

// takeLogs makes the libraries of this process log to log. Each has a format of its own otherwise,
// which a collector of JSON cannot read.
func takeLogs(log *slog.Logger) {
	slog.SetDefault(log) // also that of package log, which net/http uses: at INFO
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(log.Handler(), slog.LevelError).Writer()))
	redis.SetLogger(redisLog{log})
}

// redisLog logs at DEBUG: the limiter has a line of its own for an outage, and go-redis has one for
// each attempt.
type redisLog struct{ *slog.Logger }

func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, v...))
}

// settingNames gives a field of the library the name that it has as a setting here.
func settingNames(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.MessageKey || a.Key == "remedy" {
		a.Value = slog.StringValue(strings.ReplaceAll(a.Value.String(), "Budget", "TIERED_BUDGET"))
	}
	return a
}
