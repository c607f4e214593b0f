package picture

import (
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// value is a metric by its name in package scenario, in the unit of an expectation; −1 when it is not known.
func value(m *measure.Metrics, name string) float64 {
	switch name {
	case "over_admission":
		return m.OverAdmission
	case "shortfall":
		return m.Shortfall
	case "denied_within":
		return m.DeniedWithin
	case "utilisation":
		return m.Utilisation
	case "decide_p50":
		return scaled(m.DecideP50, 1e-6)
	case "decide_p99":
		return scaled(m.DecideP99, 1e-6)
	case "decide_max":
		return scaled(m.DecideMax, 1e-6)
	case "waited":
		return m.Waited
	case "redis_calls":
		return m.RedisCalls
	case "calls_per_token":
		return m.CallsPerToken
	case "lost":
		return float64(m.Lost)
	case "burnt":
		return float64(m.Burnt)
	case "duplicated":
		return float64(m.Duplicated)
	case "alone":
		return float64(m.Alone)
	case "uncounted":
		return float64(m.Uncounted)
	case "detect":
		return scaled(m.Detect, 1e-3)
	case "heal":
		return scaled(m.Heal, 1e-3)
	case "recovered":
		return scaled(m.Recovered, 1e-3)
	case "open":
		return m.Open
	case "breaker_changes":
		return float64(m.BreakerChanges)
	case "probes":
		return float64(m.Probes)
	case "jain":
		return m.Jain
	case "keys":
		return float64(m.Keys)
	}
	return -1
}

// scaled is v in another unit; what is not known stays so.
func scaled(v, by float64) float64 {
	if !known(v) {
		return -1
	}
	return v * by
}

// written is a value of a metric as people read it.
func written(name string, v float64) string {
	switch unitOf(name) {
	case scenario.Ratio:
		if name == "jain" || name == "calls_per_token" {
			return amount(v)
		}
		return percent(v)
	case scenario.Seconds:
		return length(v)
	case scenario.PerSec:
		return perSecond(v)
	}
	return amount(v)
}

// unitOf is the unit of a metric, and Count of what is none.
func unitOf(name string) scenario.Unit {
	for _, m := range scenario.Metrics {
		if m.Name == name {
			return m.Unit
		}
	}
	return scenario.Count
}

// bounded is the metric that an expectation's text is about: its first word, with or without "expect".
func bounded(text string) string {
	words := strings.Fields(text)
	if len(words) > 1 && words[0] == "expect" {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// tile is a figure at the top of the page.
type tile struct{ Name, Value, What string }

// tiles are the figures that a run is judged by.
func tiles(m *measure.Metrics) (list []tile) {
	for _, t := range []struct{ metric, name, what string }{
		{"over_admission", "Over-admission", "tokens beyond burst + rate × time, in the worst interval"},
		{"shortfall", "Shortfall", "of what one ideal limiter admits"},
		{"decide_max", "Longest decision", ""},
		{"redis_calls", "Redis calls", "of the script, all processes"},
		{"detect", "Detected in", "until the last breaker opened"},
		{"heal", "Healed in", "until the last breaker closed"},
		{"recovered", "Recovered in", "until the rate was the ideal one again"},
		{"jain", "Fairness", "Jain’s index over the processes: 1 is even"},
	} {
		if t.metric == "decide_max" {
			t.what = "half took " + length(value(m, "decide_p50")) + ", 99 of 100 at most " + length(value(m, "decide_p99"))
		}
		list = append(list, tile{t.name, written(t.metric, value(m, t.metric)), t.what})
	}
	return list
}

// table is figures side by side.
type table struct {
	Columns []string
	Rows    []tableRow
}

type tableRow struct {
	Name, What string
	Cells      []string
}

const maxColumns = 12

// figures are all metrics of a run, its phases and its limits, as far as there is room.
func figures(r *measure.Report) (t table) {
	type part struct {
		name string
		m    *measure.Metrics
	}
	parts := []part{{"whole run", &r.Metrics}}
	for i := range r.Phases {
		p := &r.Phases[i]
		parts = append(parts, part{clip(p.Name, 24) + ", " + length(p.FromS) + " – " + length(p.ToS), &p.Metrics})
	}
	if len(r.Limits) > 1 {
		for _, name := range sortedKeys(r.Limits) {
			m := r.Limits[name]
			parts = append(parts, part{"limit " + clip(name, 24), &m})
		}
	}
	parts = parts[:min(len(parts), maxColumns)]
	row := func(name, what string, text func(*measure.Metrics) string) {
		cells := make([]string, len(parts))
		for i, p := range parts {
			cells[i] = text(p.m)
		}
		t.Rows = append(t.Rows, tableRow{name, what, cells})
	}
	for _, p := range parts {
		t.Columns = append(t.Columns, p.name)
	}
	row("offered", "tokens asked for", func(m *measure.Metrics) string { return amount(float64(m.Offered)) })
	row("admitted", "tokens admitted", func(m *measure.Metrics) string { return amount(float64(m.Admitted)) })
	row("ideal", "what one ideal bucket per key admits of the same requests", func(m *measure.Metrics) string { return amount(float64(m.Ideal)) })
	for _, metric := range scenario.Metrics {
		row(metric.Name, metric.What, func(m *measure.Metrics) string { return written(metric.Name, value(m, metric.Name)) })
	}
	return t
}
