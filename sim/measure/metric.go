package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// reader gets a metric of package scenario from what a report has of it.
type reader struct {
	get   func(*Metrics) float64
	scale float64 // of a unit of the report, in units of an expectation
	fleet bool    // it is one of the whole fleet, which no limit has for itself
}

const (
	microsecond = 1e-6
	millisecond = 1e-3
)

// readers has one for each of scenario.Metrics.
var readers = map[string]reader{
	"over_admission":  {func(m *Metrics) float64 { return m.OverAdmission }, 1, false},
	"shortfall":       {func(m *Metrics) float64 { return m.Shortfall }, 1, false},
	"denied_within":   {func(m *Metrics) float64 { return m.DeniedWithin }, 1, false},
	"utilisation":     {func(m *Metrics) float64 { return m.Utilisation }, 1, false},
	"decide_p50":      {func(m *Metrics) float64 { return m.DecideP50 }, microsecond, false},
	"decide_p99":      {func(m *Metrics) float64 { return m.DecideP99 }, microsecond, false},
	"decide_p999":     {func(m *Metrics) float64 { return m.DecideP999 }, microsecond, false},
	"decide_max":      {func(m *Metrics) float64 { return m.DecideMax }, microsecond, false},
	"waited":          {func(m *Metrics) float64 { return m.Waited }, 1, false},
	"redis_calls":     {func(m *Metrics) float64 { return m.RedisCalls }, 1, true},
	"calls_per_token": {func(m *Metrics) float64 { return m.CallsPerToken }, 1, true},
	"lost":            {func(m *Metrics) float64 { return float64(m.Lost) }, 1, true},
	"burnt":           {func(m *Metrics) float64 { return float64(m.Burnt) }, 1, false},
	"duplicated":      {func(m *Metrics) float64 { return float64(m.Duplicated) }, 1, true},
	"alone":           {func(m *Metrics) float64 { return float64(m.Alone) }, 1, false},
	"uncounted":       {func(m *Metrics) float64 { return float64(m.Uncounted) }, 1, false},
	"detect":          {func(m *Metrics) float64 { return m.Detect }, millisecond, true},
	"heal":            {func(m *Metrics) float64 { return m.Heal }, millisecond, true},
	"recovered":       {func(m *Metrics) float64 { return m.Recovered }, millisecond, false},
	"open":            {func(m *Metrics) float64 { return m.Open }, 1, true},
	"breaker_changes": {func(m *Metrics) float64 { return float64(m.BreakerChanges) }, 1, true},
	"probes":          {func(m *Metrics) float64 { return float64(m.Probes) }, 1, true},
	"jain":            {func(m *Metrics) float64 { return m.Jain }, 1, false},
	"least_process":   {func(m *Metrics) float64 { return m.LeastProcess }, 1, false},
	"jain_keys":       {func(m *Metrics) float64 { return m.JainKeys }, 1, false},
	"least_key":       {func(m *Metrics) float64 { return m.LeastKey }, 1, false},
	"starved_process": {func(m *Metrics) float64 { return m.StarvedProcess }, millisecond, false},
	"starved_key":     {func(m *Metrics) float64 { return m.StarvedKey }, millisecond, false},
	"keys":            {func(m *Metrics) float64 { return float64(m.Keys) }, 1, true},
}

// Value is a metric of package scenario in the unit of an expectation, −1 when it cannot be told or is none.
func (m *Metrics) Value(metric string) float64 {
	r, ok := readers[metric]
	if !ok {
		return -1
	}
	v := r.get(m)
	if v < 0 {
		return -1
	}
	return v * r.scale
}

// unitOf is the unit of a metric.
func unitOf(metric string) scenario.Unit {
	for _, m := range scenario.Metrics {
		if m.Name == metric {
			return m.Unit
		}
	}
	return scenario.Count
}

// micros and millis are d as the names of the fields say; a negative d is −1.
func micros(d time.Duration) float64 { return inUnits(d, time.Microsecond) }
func millis(d time.Duration) float64 { return inUnits(d, time.Millisecond) }

func inUnits(d, unit time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return float64(d) / float64(unit)
}

// ratio is part of whole, −1 of nothing.
func ratio(part, whole int64) float64 {
	if whole == 0 {
		return -1
	}
	return float64(part) / float64(whole)
}
