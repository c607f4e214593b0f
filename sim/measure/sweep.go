package measure

import "github.com/tiered-limiter/tiered-limiter/sim/scenario"

// Sweep is what came of one scenario run with each combination of its axes' values.
type Sweep struct {
	Schema   int                `json:"schema"`
	Scenario *scenario.Scenario `json:"scenario"` // as it was before an axis changed it
	Engine   string             `json:"engine"`
	Seed     uint64             `json:"seed"` // of every cell
	Version  string             `json:"version"`

	Axes  []scenario.Axis `json:"axes"`
	Cells []Cell          `json:"cells"`

	// Advice is a sentence that says which cell to take and why, and Advised that cell's Values. Both are empty when no
	// cell is better than the others, or nobody asked.
	Advice  string            `json:"advice,omitempty"`
	Advised map[string]string `json:"advised,omitempty"`

	// Policy is that cell's, ready to use, and Expected what formulas estimate of it. Both are empty when
	// nobody asked.
	Policy   *Policy    `json:"policy,omitempty"`
	Expected []Expected `json:"expected,omitempty"`
}

// Cell is one run of a sweep.
type Cell struct {
	Values  map[string]string `json:"values"` // by Axis.Path, one of its Values each
	Passed  bool              `json:"passed"`
	AsIs    bool              `json:"as_is,omitempty"` // the values are those of the scenario itself
	Unseed  string            `json:"unseed"`
	Metrics Metrics           `json:"metrics"`
}

// Expected is an estimate by a formula, for what was advised, beside what was measured.
type Expected struct {
	Name     string  `json:"name"`
	What     string  `json:"what"`     // the formula, in words
	AtMost   bool    `json:"at_most"`  // it is a bound, not an estimate
	Value    float64 `json:"value"`    // in tokens, seconds or per second
	Measured float64 `json:"measured"` // in the same

	Text         string `json:"text"` // both as texts have them, with their units
	MeasuredText string `json:"measured_text"`
}

// Policy is a policy, and the options that belong to it, for a program to read.
type Policy struct {
	Limit     scenario.Limit    `json:"limit"`      // its name is that of the policy
	FailMode  string            `json:"fail_mode"`  // local, open, closed
	LeaseSize int64             `json:"lease_size"` // tokens; 0 follows demand, −1 leases nothing
	Period    scenario.Duration `json:"lease_period"`
	Processes int               `json:"processes"` // Options.Processes
}
