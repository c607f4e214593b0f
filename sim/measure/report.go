package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Schema is the version of [Report] as JSON. It rises when a field changes its meaning or is removed. New fields may
// come without that.
const Schema = 2

// Report is what a run came to. The name of a field ends in its unit.
type Report struct {
	Schema   int                `json:"schema"`
	Scenario *scenario.Scenario `json:"scenario"`
	Seed     uint64             `json:"seed"`
	Unseed   string             `json:"unseed"`  // 16 hexadecimal digits, the same for equal runs
	Version  string             `json:"version"` // of the project and of Go
	Passed   bool               `json:"passed"`
	// by the name of a limit: local, open or closed, of a policy of yours that has another fail mode than the fleet
	FailModes map[string]string `json:"fail_modes,omitempty"`

	Metrics      Metrics            `json:"metrics"` // from the warm-up to the end
	Phases       []Phase            `json:"phases"`  // before, during and after the faults
	Limits       map[string]Metrics `json:"limits"`  // of each limit; what is of the fleet is −1
	Expectations []Outcome          `json:"expectations"`
	Sometimes    []Happening        `json:"sometimes"` // all of scenario.Happenings
	Faults       []FaultSpan        `json:"faults"`

	Series Series `json:"series"`
}

// Phase is a part of a run: "before" the faults, "during" them, "after". One of no length is left out.
type Phase struct {
	Name    string  `json:"name"`
	FromS   float64 `json:"from_s"`
	ToS     float64 `json:"to_s"`
	Metrics Metrics `json:"metrics"`
}

// Metrics are the metrics of package scenario for a part of a run, and the tokens that they are made of. −1 is not
// known.
type Metrics struct {
	Offered  int64 `json:"offered_tokens"`
	Admitted int64 `json:"admitted_tokens"`
	Ideal    int64 `json:"ideal_tokens"` // what one ideal bucket per key admits of the same requests

	OverAdmission float64 `json:"over_admission_tokens"`
	Shortfall     float64 `json:"shortfall_ratio"`
	DeniedWithin  float64 `json:"denied_within_ratio"`
	Utilisation   float64 `json:"utilisation_ratio"`
	DecideP99     float64 `json:"decide_p99_us"`
	DecideMax     float64 `json:"decide_max_us"`
	RedisCalls    float64 `json:"redis_calls_per_s"`
	Alone         int64   `json:"alone_tokens"`
	Unaccounted   int64   `json:"unaccounted_tokens"`
	Detect        float64 `json:"time_to_detect_ms"`
	Heal          float64 `json:"time_to_heal_ms"`
	Recovered     float64 `json:"time_to_recover_ms"`
}

// Value returns a metric of package scenario in the unit of an expectation: −1 if it is not known, or no metric.
func (m *Metrics) Value(metric string) float64 {
	v := -1.0
	switch metric {
	case "over_admission":
		v = m.OverAdmission
	case "shortfall":
		v = m.Shortfall
	case "denied_within":
		v = m.DeniedWithin
	case "utilisation":
		v = m.Utilisation
	case "decide_p99":
		v = m.DecideP99 * microsecond
	case "decide_max":
		v = m.DecideMax * microsecond
	case "redis_calls":
		v = m.RedisCalls
	case "alone":
		v = float64(m.Alone)
	case "unaccounted":
		v = float64(m.Unaccounted)
	case "detect":
		v = m.Detect * millisecond
	case "heal":
		v = m.Heal * millisecond
	case "recovered":
		v = m.Recovered * millisecond
	}
	if v < 0 {
		return -1
	}
	return v
}

const (
	microsecond = 1e-6
	millisecond = 1e-3
)

// ofFleet reports whether a metric is of all processes and limits together. It is not known of a single limit.
func ofFleet(metric string) bool {
	return metric == "redis_calls" || metric == "unaccounted" || metric == "detect" || metric == "heal"
}

// Outcome is an expectation and what came of it.
type Outcome struct {
	Text   string  `json:"text"`  // as in the scenario
	Value  float64 `json:"value"` // in the unit of the expectation
	Passed bool    `json:"passed"`
}

// Happening is something that may have happened.
type Happening struct {
	Name   string `json:"name"`
	Count  int64  `json:"count"`  // from the warm-up on; tokens of lease_lost, lease_burnt, debt_settled
	Wanted bool   `json:"wanted"` // by a `sometimes`: a run without it shows nothing, and has not passed
}

// FaultSpan is when a fault was.
type FaultSpan struct {
	Text  string  `json:"text"`
	FromS float64 `json:"from_s"`
	ToS   float64 `json:"to_s"`
}

// Series is what happened over time, all limits together, in steps of one length: at most 600 of them.
type Series struct {
	StepS    float64   `json:"step_s"`
	Offered  []float64 `json:"offered_per_s"`
	Admitted []float64 `json:"admitted_per_s"`
	Alone    []float64 `json:"alone_per_s"`
	Calls    []float64 `json:"calls_per_s"`
	MaxUs    []float64 `json:"decide_max_us"` // −1 without a decision
	Open     []float64 `json:"open_ratio"`
}

// micros and millis convert d to the units in the names of the fields. A negative d is −1.
func micros(d time.Duration) float64 { return inUnits(d, time.Microsecond) }
func millis(d time.Duration) float64 { return inUnits(d, time.Millisecond) }

func inUnits(d, unit time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return float64(d) / float64(unit)
}

// ratio returns part by whole, −1 if whole is 0.
func ratio(part, whole int64) float64 {
	if whole == 0 {
		return -1
	}
	return float64(part) / float64(whole)
}
