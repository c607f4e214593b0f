package tiered

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
)

// Plans are limits by the name of a plan, such as "free" or "pro": see [Policy].Plans.
//
// A plan comes with the request, so its user has it from the next request on, and nothing has to be refreshed. If only
// the key tells the plan, as a table of users in memory does, or if the policy has Standing, use [Policy].PerKey with
// the same map, and [Limiter.Refresh] when a user changes plans:
//
//	PerKey: func(user string) tiered.Limit { return plans[planOf(user)] }
type Plans map[string]Limit

const (
	maxPlans    = 1000 // so that the limits of all are kept ready: see engine.MaxPolicies
	maxPlanName = 64   // bytes
)

var _ = [engine.MaxPolicies - maxPlans - 1]struct{}{}

// names returns the names in order.
func (p Plans) names() []string { return slices.Sorted(maps.Keys(p)) }

// planField is how errors name a plan.
func planField(name string) string { return fmt.Sprintf("Plans[%.80q]", name) }
