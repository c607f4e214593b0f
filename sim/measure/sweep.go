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
}

// Cell is one run of a sweep.
type Cell struct {
	Values  map[string]string `json:"values"` // by Axis.Path, one of its Values each
	Passed  bool              `json:"passed"`
	Unseed  string            `json:"unseed"`
	Metrics Metrics           `json:"metrics"`
}
