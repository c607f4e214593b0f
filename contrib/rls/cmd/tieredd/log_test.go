package main_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	tieredd "github.com/tiered-limiter/tiered-limiter/contrib/rls/cmd/tieredd"
)

// A line tells the setting to change by its name here.
func TestLogNamesSettings(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: tieredd.SettingNames}))
	log.Warn("redis answers later than Budget: the fail modes decide", "remedy", "raise Budget above 244ms", "node", "Budget")
	if line := out.String(); !strings.Contains(line, "later than TIERED_BUDGET:") ||
		!strings.Contains(line, "raise TIERED_BUDGET above") || !strings.Contains(line, "node=Budget") {
		t.Error(line)
	}
}
