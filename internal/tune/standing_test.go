package tune

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Standing shares pay for rarely used keys, not for hot ones, and what they need is said.
func TestStanding(t *testing.T) {
	for _, row := range []struct {
		name   string
		limit  scenario.Limit
		keys   int64
		demand float64
		pays   bool
		says   string
	}{
		{
			"rarely used keys",
			scenario.Limit{Tokens: 100, Per: second, Burst: 200},
			1000, 0.01, true,
			"Standing shares: 0 calls of Redis per decision instead of 1, 0% of the requests wait instead of 100%, " +
				"and a user who always meets one process has at least 90.62% of the limit. They pay: see docs/standing.md.",
		},
		{"a slow limit", scenario.Limit{Tokens: 1000, Per: 3600 * second}, 100, 0.05, true, "They pay"},
		{"hot keys", scenario.Limit{Tokens: 100, Per: second, Burst: 200}, 3, 1.5, false, "They do not pay."},
		{
			"a small burst",
			scenario.Limit{Tokens: 15, Per: second},
			1000, 0.01, false,
			"Standing shares are not possible: tiered: Policy.Standing is on: must be StandingOff with Limit 15/s burst 15: " +
				"its burst is 15: must be at least 16",
		},
		{
			"too many processes",
			scenario.Limit{Tokens: 31, Per: second},
			1000, 0.01, false,
			"not possible: the burst is 31: must be at least 32 for 4 processes, or no share holds a token",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			q := Question{Limit: row.limit, Keys: row.keys, Demand: row.demand, Processes: 4, Requests: 100, Shape: "ramp"}
			if err := q.Check(); err != nil {
				t.Fatal(err)
			}
			s, err := q.standing(Choice{})
			if err != nil || s.Pays() != row.pays || !strings.Contains(s.String(), row.says) {
				t.Errorf("%v, %v", err, &s)
			}
		})
	}
}
