package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Schema is the version of [Report] as JSON. It rises when a field changes its meaning or is
// removed. New fields may come without that.
const Schema = 2

// Report is what a run came to. The names of fields that are no metrics end in their unit.
type Report struct {
	Schema   int                `json:"schema"`
	Scenario *scenario.Scenario `json:"scenario"`
	Seed     uint64             `json:"seed"`
	Unseed   string             `json:"unseed"`  // 16 hexadecimal digits, the same for equal runs
	Version  string             `json:"version"` // of the project and of Go
	Passed   bool               `json:"passed"`
	// by the name of a limit: local, open or closed, of a policy of yours that has another fail
	// mode than the fleet
	FailModes      map[string]string `json:"fail_modes,omitempty"`
	AtOnceFailMode string            `json:"at_once_fail_mode,omitempty"` // likewise

	Metrics      Metrics            `json:"metrics"` // from the warm-up to the end
	Phases       []Phase            `json:"phases"`  // before, during and after the faults
	Limits       map[string]Metrics `json:"limits"`  // of each limit; what is of the fleet is −1
	Expectations []Outcome          `json:"expectations"`
	Sometimes    []Happening        `json:"sometimes"` // all of scenario.Happenings
	Faults       []FaultSpan        `json:"faults"`

	Series Series `json:"series"`
}

// Phase is a part of a run: "before" the faults, "during" them, "after". One of no length is left
// out.
type Phase struct {
	Name    string  `json:"name"`
	FromS   float64 `json:"from_s"`
	ToS     float64 `json:"to_s"`
	Metrics Metrics `json:"metrics"`
}

// Metrics are those of package scenario for a part of a run, under their names and in the units of
// an expectation, and the tokens that they are made of. −1 is not known.
type Metrics struct {
	Offered  int64 `json:"offered"`
	Admitted int64 `json:"admitted"`
	Ideal    int64 `json:"ideal"` // what one ideal limiter per key admits of the same requests

	OverAdmission float64 `json:"over_admission"`
	Shortfall     float64 `json:"shortfall"`
	DeniedWithin  float64 `json:"denied_within"`
	Utilisation   float64 `json:"utilisation"`
	DecideP99     float64 `json:"decide_p99"`
	DecideMax     float64 `json:"decide_max"`
	RedisCalls    float64 `json:"redis_calls"`
	Alone         int64   `json:"alone"`
	Unaccounted   int64   `json:"unaccounted"`
	AtOnce        float64 `json:"at_once"` // −1 without a policy of it, as Full
	Full          float64 `json:"full"`
	Detect        float64 `json:"detect"`
	Heal          float64 `json:"heal"`
	Recovered     float64 `json:"recovered"`
}

// Value returns a metric by its name: −1 if it is not known, or no metric.
func (m *Metrics) Value(metric string) float64 {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("json") == metric {
			return max(-1, v.Field(i).Convert(reflect.TypeFor[float64]()).Float())
		}
	}
	return -1
}

// ofFleet reports whether a metric is of all processes and limits together. It is not known of a
// single limit.
func ofFleet(metric string) bool {
	return slices.Contains([]string{"redis_calls", "unaccounted", "at_once", "full", "detect", "heal"}, metric)
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

// Series is what happened over time, all limits together, in steps of one length: at most 600 of
// them.
type Series struct {
	StepS    float64   `json:"step_s"`
	Offered  []float64 `json:"offered_per_s"`
	Admitted []float64 `json:"admitted_per_s"`
	Alone    []float64 `json:"alone_per_s"`
	Calls    []float64 `json:"calls_per_s"`
	MaxUs    []float64 `json:"decide_max_us"` // −1 without a decision
	Open     []float64 `json:"open_ratio"`
	Running  []float64 `json:"running,omitempty"` // requests of one key at the same time
	// what the limit lets through beside a burst, if all requests are for one key: of several limits
	// the strictest, of a window what it has left
	Limit []float64 `json:"limit_per_s,omitempty"`
}

// JSON writes a report, or a sweep, as one JSON object, indented. sim/report.md says what each
// field is.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Read reads a report as JSON: exactly this [Schema], with a scenario, and nothing after the
// object. It ignores fields that it does not know, because a later version of the same schema may
// have more.
func Read(r io.Reader) (*Report, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	var head struct { // first, because with another schema what else is wrong means nothing
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	if head.Schema != Schema {
		return nil, fmt.Errorf("measure: report: schema is %d: must be %d, so run the scenario again with this version",
			head.Schema, Schema)
	}
	out := &Report{}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, fmt.Errorf("measure: report: %w", err)
	}
	if out.Scenario == nil {
		return nil, errors.New("measure: report: scenario is missing: a report has one")
	}
	return out, nil
}

// maxSteps is how many steps a series has at most: enough for the width of a screen.
const maxSteps = 600

// series is what happened over time.
type series struct {
	length time.Duration // of a step
	steps  []step
	lined  int // of how many steps the limit is known
}

// step is what happened in a part of the time.
type step struct {
	offered, admitted, alone, calls int64
	open                            float64       // the largest share of breakers that were not closed
	longest                         time.Duration // decision; −1: none
	running                         int           // of one key, at most
	limit                           float64       // tokens
}

// stepLength is the least of 100, 200, 500 ms, 1, 2, 5 s, … that cuts a run into at most maxSteps
// steps.
func stepLength(run time.Duration) time.Duration {
	for unit := 100 * time.Millisecond; ; unit *= 10 {
		for _, n := range []int{1, 2, 5} {
			if step := time.Duration(n) * unit; (run+step-1)/step <= maxSteps {
				return step
			}
		}
	}
}

func newSeries(run time.Duration) series {
	s := series{length: stepLength(run)}
	s.steps = make([]step, (run+s.length-1)/s.length)
	for i := range s.steps {
		s.steps[i].longest = -1
	}
	return s
}

// step returns the number of the step of a time. What comes after the end belongs to the last.
func (s *series) step(at time.Duration) int { return min(int(max(at, 0)/s.length), len(s.steps)-1) }

// at returns the step of a time.
func (s *series) at(at time.Duration) *step { return &s.steps[s.step(at)] }

// report returns the series of a run of that length. atOnce says that there is a policy of what
// runs at the same time.
func (s *series) report(run time.Duration, atOnce bool) Series {
	r := Series{StepS: s.length.Seconds()}
	for i := range s.steps {
		length := min(s.length, run-s.length*time.Duration(i)).Seconds() // the last step may be cut short
		per := func(tokens int64) float64 { return rounded(float64(tokens) / length) }
		if i < s.lined {
			r.Limit = append(r.Limit, rounded(s.steps[i].limit/length))
		}
		x := &s.steps[i]
		r.Offered = append(r.Offered, per(x.offered))
		r.Admitted = append(r.Admitted, per(x.admitted))
		r.Alone = append(r.Alone, per(x.alone))
		r.Calls = append(r.Calls, per(x.calls))
		r.MaxUs = append(r.MaxUs, rounded(max(-1, float64(x.longest)/float64(time.Microsecond))))
		r.Open = append(r.Open, rounded(x.open))
		if atOnce {
			r.Running = append(r.Running, float64(x.running))
		}
	}
	return r
}

// rounded rounds to four digits after the point. A picture shows no more, and a report is half as
// long.
func rounded(x float64) float64 { return math.Round(x*1e4) / 1e4 }
