package measure

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Schema is the version of [Report] as JSON. It rises when a field changes its meaning or goes; new ones may come.
const Schema = 1

// Report is what came of a run. Durations are in the unit that the name of the field ends in.
type Report struct {
	Schema   int                `json:"schema"`
	Scenario *scenario.Scenario `json:"scenario"`
	Engine   string             `json:"engine"` // virtual, lua, live
	Seed     uint64             `json:"seed"`
	Unseed   string             `json:"unseed"`  // 16 hexadecimal digits, the same for equal runs; empty for live
	Version  string             `json:"version"` // of the project and of Go
	Passed   bool               `json:"passed"`
	// by the name of a limit: local, open or closed, of a policy of yours that has another fail mode than the fleet
	FailModes map[string]string `json:"fail_modes,omitempty"`
	// live: by how much the machine itself held up those who took part, at most
	LagMs float64 `json:"lag_ms,omitempty"`

	Metrics Metrics `json:"metrics"` // from the warm-up to the end
	Phases  []Phase `json:"phases"`  // before, during and after the faults
	// of each limit, from the warm-up to the end; what is of the fleet is −1
	Limits       map[string]Metrics `json:"limits"`
	Expectations []Outcome          `json:"expectations"`
	Sometimes    []Happening        `json:"sometimes"` // all of scenario.Happenings
	Faults       []FaultSpan        `json:"faults"`    // when each was, for the shades of a picture

	Series   Series         `json:"series"`
	Breakers []BreakerStrip `json:"breakers"` // of up to 100 processes
	Ledger   Ledger         `json:"ledger"`
	Audit    Audit          `json:"audit"`
}

// Phase is a part of a run: "before" the faults, "during" them, "after". One of no length is left out.
type Phase struct {
	Name    string  `json:"name"`
	FromS   float64 `json:"from_s"`
	ToS     float64 `json:"to_s"`
	Metrics Metrics `json:"metrics"`
}

// Metrics are the metrics of package scenario for a part of a run. What cannot be told of the part is −1, which no
// metric is otherwise.
type Metrics struct {
	Offered  int64 `json:"offered_tokens"`
	Admitted int64 `json:"admitted_tokens"`
	Ideal    int64 `json:"ideal_tokens"` // what one ideal bucket per key admits of the same requests

	OverAdmission  float64 `json:"over_admission_tokens" metric:"over_admission"`
	Shortfall      float64 `json:"shortfall_ratio" metric:"shortfall"`
	DeniedWithin   float64 `json:"denied_within_ratio" metric:"denied_within"`
	Utilisation    float64 `json:"utilisation_ratio" metric:"utilisation"`
	DecideP50      float64 `json:"decide_p50_us" metric:"decide_p50"`
	DecideP99      float64 `json:"decide_p99_us" metric:"decide_p99"`
	DecideP999     float64 `json:"decide_p999_us" metric:"decide_p999"`
	DecideMax      float64 `json:"decide_max_us" metric:"decide_max"`
	Waited         float64 `json:"waited_ratio" metric:"waited"`
	RedisCalls     float64 `json:"redis_calls_per_s" metric:"redis_calls,fleet"`
	CallsPerToken  float64 `json:"calls_per_token" metric:"calls_per_token,fleet"`
	Lost           int64   `json:"lost_tokens" metric:"lost,fleet"`
	Burnt          int64   `json:"burnt_tokens" metric:"burnt"`
	Duplicated     int64   `json:"duplicated_tokens" metric:"duplicated,fleet"`
	Alone          int64   `json:"alone_tokens" metric:"alone"`
	Uncounted      int64   `json:"uncounted_tokens" metric:"uncounted"`
	Unaccounted    int64   `json:"unaccounted_tokens" metric:"unaccounted,fleet"`
	Detect         float64 `json:"time_to_detect_ms" metric:"detect,fleet"`
	Heal           float64 `json:"time_to_heal_ms" metric:"heal,fleet"`
	Recovered      float64 `json:"time_to_recover_ms" metric:"recovered"`
	Open           float64 `json:"open_ratio" metric:"open,fleet"`
	BreakerChanges int     `json:"breaker_changes" metric:"breaker_changes,fleet"`
	Probes         int     `json:"probes_per_100ms" metric:"probes,fleet"`
	Jain           float64 `json:"jain" metric:"jain"`
	LeastProcess   float64 `json:"least_process_ratio" metric:"least_process"`
	JainKeys       float64 `json:"jain_keys" metric:"jain_keys"`
	LeastKey       float64 `json:"least_key_ratio" metric:"least_key"`
	StarvedProcess float64 `json:"starved_process_ms" metric:"starved_process"`
	StarvedKey     float64 `json:"starved_key_ms" metric:"starved_key"`
	Keys           int     `json:"keys" metric:"keys,fleet"`
}

// Outcome is an expectation and what came of it.
type Outcome struct {
	Text   string  `json:"text"`  // as in the scenario
	Value  float64 `json:"value"` // in the unit of the expectation
	Passed bool    `json:"passed"`
	Unseen bool    `json:"unseen,omitempty"` // the engine cannot see it: not held against the run
}

// Happening is something that may have happened.
type Happening struct {
	Name   string `json:"name"`
	Count  int64  `json:"count"`            // from the warm-up on; tokens of lease_lost, lease_burnt, debt_settled
	Wanted bool   `json:"wanted"`           // by a `sometimes`: a run without it shows nothing, and has not passed
	Unseen bool   `json:"unseen,omitempty"` // the engine cannot see all of it, and saw none: not held against the run
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
	Ideal    []float64 `json:"ideal_per_s"`
	Limit    []float64 `json:"limit_per_s"` // the rates of the limits' keys that were asked for
	Alone    []float64 `json:"alone_per_s"`
	Calls    []float64 `json:"calls_per_s"`
	MaxUs    []float64 `json:"decide_max_us"` // −1 without a decision
	Open     []float64 `json:"open_ratio"`
	Jain     []float64 `json:"jain"` // −1 where nothing was admitted

	// The ledger at the end of each step, of all processes together.
	Granted  []int64 `json:"granted"`
	Spent    []int64 `json:"spent"`
	Returned []int64 `json:"returned"`
	Burnt    []int64 `json:"burnt"`
	Held     []int64 `json:"held"`
}

// BreakerStrip is the breaker of one process over time.
type BreakerStrip struct {
	Process string          `json:"process"`
	Changes []BreakerChange `json:"changes"`
}

// BreakerChange is from when on a breaker was in a state: closed, open, probing; or the process was "gone".
type BreakerChange struct {
	AtS   float64 `json:"at_s"`
	State string  `json:"state"`
}

// Ledger is where all tokens that Redis granted are at the end: Granted = Spent + Returned + Burnt + Held + Lost.
// Where Lost is not known, Granted is what processes heard of, and of one that was killed what it had told by then.
type Ledger struct {
	Granted  int64 `json:"granted"`
	Spent    int64 `json:"spent"`
	Returned int64 `json:"returned"`
	Burnt    int64 `json:"burnt"`
	Held     int64 `json:"held"`
	Lost     int64 `json:"lost"` // granted, and no process heard of it; −1 when nobody can tell
}

// Audit is what an engine saw that can look at both sides, Redis and the processes: see sim/report.md. A run in
// which a rule did not hold has not passed. Where nobody can look, all figures are −1.
type Audit struct {
	Looks  int64   `json:"looks"`
	Broken int64   `json:"broken"`        // looks at which a rule did not hold
	Excess float64 `json:"excess_tokens"` // at the worst of them, as far as it is one of tokens
	First  string  `json:"first,omitempty"`
}

// Audited adds what the audit came to: it is over when everybody has gone home, after Report.
func (r *Report) Audited(a Audit) {
	r.Audit = a
	r.Passed = r.Passed && a.Broken <= 0
}

// seconds is d as JSON has it.
func seconds(d time.Duration) float64 { return d.Seconds() }
