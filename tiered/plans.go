package tiered

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

const (
	maxPlans    = 1000 // so that the limits of all are kept ready: see engine.MaxPolicies
	maxPlanName = 64   // bytes
)

var _ = [engine.MaxPolicies - maxPlans - 1]struct{}{}

// planNames returns the names in order.
func planNames(of map[string]Limit) []string { return slices.Sorted(maps.Keys(of)) }

// planField is how errors name a plan.
func planField(name string) string { return fmt.Sprintf("Plans[%.80q]", name) }
