package invariant

import (
	"fmt"
	"math"
)

// Finding is a rule that did not hold. Its zero value is that all did.
type Finding struct {
	Rule   string
	Excess float64 // tokens by which it was broken, ≥ 0; 0 if the rule is about something else
}

// Broken reports whether a rule did not hold.
func (f *Finding) Broken() bool { return f.Rule != "" }

// Is notes a rule that does not hold if wrong is true. The first one that is noted stays.
func (f *Finding) Is(wrong bool, excess float64, format string, args ...any) {
	if wrong && f.Rule == "" {
		f.Rule, f.Excess = fmt.Sprintf(format, args...), math.Abs(excess)
	}
}

// Or takes another finding if there is none yet.
func (f *Finding) Or(other Finding) {
	if f.Rule == "" {
		*f = other
	}
}

func (f Finding) String() string { return fmt.Sprintf("%s (by %v tokens)", f.Rule, f.Excess) }
