package main

import (
	"fmt"
	"math"

	"github.com/tiered-limiter/tiered-limiter/internal/test/docpage"
)

// gains are the rows of the README's table "what you gain": what somebody does, the claim with the
// calls to Redis per request that this costs, and the calls of redis_rate, which are by its code.
var gains = []struct{ who, claim, peer string }{
	{
		"plans by user and a limit by address, 12 replicas, 600/s over 20 000 users, with [standing shares](docs/standing.md)",
		"plans, 12 replicas, shares of a half, filled: Redis calls per request of two keys", "2",
	},
	{
		"a hot tenant: one key, a replica at full speed",
		"Redis commands per allowed decision, hot key, one process at full speed", "1",
	},
	{
		"an address limit under attack: 10 000/s of one address at a replica",
		"Redis commands per denied decision, one process, 10 000/s on one exhausted key of 100 per hour", "1",
	},
}

// writeGains writes the table into a page, if each of its claims was measured.
func writeGains(page string, values map[string]float64) error {
	rows := [][]string{{"your keys", "calls to Redis per request", "with redis_rate"}}
	for _, g := range gains {
		value, ok := values[g.claim]
		if !ok {
			return fmt.Errorf("nobody claimed %q", g.claim)
		}
		rows = append(rows, []string{g.who, "**" + calls(value) + "**", g.peer})
	}
	return docpage.Write(page, "gains", docpage.Table(rows))
}

// calls writes a number of calls per request: 0.18, or 1 in 20 000.
func calls(x float64) string {
	if x >= 0.01 {
		return fmt.Sprintf("%.2f", x)
	}
	n := 1 / x
	step := math.Pow(10, math.Floor(math.Log10(n)))
	text := fmt.Sprintf("%.0f", math.Round(n/step)*step)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return "1 in " + text
}
