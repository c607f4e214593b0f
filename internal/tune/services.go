package tune

import (
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// Service is an example of a question, for sim/tuning.md.
type Service struct {
	Name     string
	Wants    string   // in a sentence
	Flags    []string // of tiersim tune, to ask the same
	Question Question
}

// Services are five services that are unlike each other.
func Services() []Service {
	minute, second := scenario.Duration(time.Minute), scenario.Duration(time.Second)
	return []Service{
		{
			"public API", "100 per minute and user; users must not notice an outage, and may have their limit twice at most",
			[]string{
				"--rate", "100/min", "--processes", "20", "--keys", "100", "--outage", "30s", "--over", "100",
				"--shortfall", "10%",
			},
			Question{
				Limit: scenario.Limit{Tokens: 100, Per: minute}, Processes: 20, Keys: 100, Outage: 30 * second,
				Over: 100, Shortfall: 0.10,
			},
		},
		{
			"payment partner", "50 per second and never more, whatever else it costs; the partner counts",
			[]string{
				"--rate", "50/s", "--processes", "10", "--demand", "1.2", "--over", "0", "--shortfall", "70%",
				"--calls", "200/s",
			},
			Question{
				Limit: scenario.Limit{Tokens: 50, Per: second}, Processes: 10, Demand: 1.2, Over: 0, Shortfall: 0.70,
				Calls: 200,
			},
		},
		{
			"internal fan-out", "200 000 per second over 50 processes; Redis must hardly notice, and neither may the callers",
			[]string{
				"--rate", "200000/s", "--processes", "50", "--demand", "1.2", "--over", "500%", "--shortfall",
				"15%", "--calls", "500/s", "--requests", "1500",
			},
			Question{
				Limit: scenario.Limit{Tokens: 200_000, Per: second}, Processes: 50, Demand: 1.2, Over: 1_000_000,
				Shortfall: 0.15, Calls: 500,
				Requests: 1500,
			},
		},
		{
			"login", "5 per minute, account and address; someone guesses passwords at four times that, and may have a handful more while Redis is away",
			[]string{
				"--rate", "5/min", "--processes", "20", "--keys", "200", "--demand", "4", "--outage", "1m",
				"--over", "20", "--shortfall", "15%",
			},
			Question{
				Limit: scenario.Limit{Tokens: 5, Per: minute}, Processes: 20, Keys: 200, Demand: 4, Outage: minute,
				Over: 20, Shortfall: 0.15,
			},
		},
		{
			"LLM tokens", "a million tokens per minute at 1 to 8000 per request; a budget, so that a burst more does no harm",
			[]string{
				"--rate", "1000000/min", "--processes", "20", "--max-cost", "8000", "--outage", "1m", "--over",
				"100%", "--shortfall", "15%",
			},
			Question{
				Limit: scenario.Limit{Tokens: 1_000_000, Per: minute}, Processes: 20, MaxCost: 8000, Outage: minute,
				Over: 1_000_000, Shortfall: 0.15,
			},
		},
	}
}
