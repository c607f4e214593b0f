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

// A rule per month or per year is what was meant: nothing doubts it, and the library's other lines
// are there.
func TestRulePerYearIsMeant(t *testing.T) {
	p := start(t, limits+"  - {key: path, rate_limit: {unit: month, requests_per_unit: 100}}\n")
	p.play(t, [2]string{"shop | user=a | path=b", "OK | OK 99/100 | OK 99/100"})
	p.terminate(t) // it writes all lines
	if log := p.log(); strings.Contains(log, "not what was meant") || !strings.Contains(log, `policies="shop.user.year, shop.path.month"`) {
		t.Errorf("%s", log)
	}
}
