package main

import (
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
