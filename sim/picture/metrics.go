package picture

import (
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// written is a value of a metric as people read it.
func written(name string, v float64) string {
	switch scenario.UnitOf(name) {
	case scenario.Ratio:
		if name == "jain" || name == "jain_keys" || name == "calls_per_token" {
			return amount(v)
		}
		return percent(v)
	case scenario.Seconds:
		return length(v)
	case scenario.PerSec:
		return perSecond(v)
	case scenario.Tokens:
		return amount(tenths(v))
	}
	return amount(v)
}

// tenths is v without what is less than a tenth of a token, which is the rounding of sums.
func tenths(v float64) float64 {
	if !known(v) {
		return -1
	}
	return math.Round(v*10) / 10
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
		{"recovered", "Recovered in", "until the rate was within 5 % of the ideal, for a second"},
		{"jain", "Fairness", "Jain’s index over the processes: 1 is even"},
	} {
		if t.metric == "decide_max" {
			t.what = "half took " + length(m.Value("decide_p50")) + ", 999 of 1000 at most " +
				length(m.Value("decide_p999"))
		}
		if v := m.Value("starved_key"); t.metric == "jain" && known(v) {
			t.what += "; no key got nothing for longer than " + length(v)
		}
		list = append(list, tile{t.name, written(t.metric, m.Value(t.metric)), t.what})
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
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
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
	row("ideal", "what one ideal bucket per key admits of the same requests",
		func(m *measure.Metrics) string { return amount(float64(m.Ideal)) })
	for _, metric := range scenario.Metrics {
		row(metric.Name, metric.What, func(m *measure.Metrics) string {
			return written(metric.Name,
				m.Value(metric.Name))
		})
	}
	return t
}
