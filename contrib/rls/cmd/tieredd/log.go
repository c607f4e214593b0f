package main

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"google.golang.org/grpc/grpclog"
)

// takeLogs makes the libraries of this process log to log. Each has a format of its own otherwise,
// which a collector of JSON cannot read.
func takeLogs(log *slog.Logger) {
	slog.SetDefault(log) // also that of package log, which net/http uses: at INFO
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, slog.NewLogLogger(log.Handler(), slog.LevelError).Writer()))
}

// settingNames gives a field of the library the name that it has as a setting here.
func settingNames(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.MessageKey || a.Key == "remedy" {
		a.Value = slog.StringValue(strings.ReplaceAll(a.Value.String(), "Budget", "TIERED_BUDGET"))
	}
	return a
}

// withoutDoubts leaves out that a policy with windows of a month or a year is probably not what was
// meant: a rule asks for those of envoyproxy/ratelimit, which have 30 and 365 days.
type withoutDoubts struct{ slog.Handler }

func (h withoutDoubts) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "a policy is probably not what was meant" {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h withoutDoubts) WithAttrs(all []slog.Attr) slog.Handler {
	return withoutDoubts{h.Handler.WithAttrs(all)}
}

func (h withoutDoubts) WithGroup(name string) slog.Handler {
	return withoutDoubts{h.Handler.WithGroup(name)}
}
