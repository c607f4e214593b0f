package main

import (
	"fmt"
	"math"

	"github.com/tiered-limiter/tiered-limiter/internal/test/docpage"
)

// gains are the rows of the README's table "what you gain": what somebody does, the claim with the
// calls to Redis per request that this costs, and the calls of redis_rate, which are by its code.
// speed is the claim with the requests per second that stand behind who, if they are measured too:
// so few calls mean nothing without them.
var gains = []struct{ who, claim, peer, speed string }{
	{
		"plans by user and a limit by address, 12 replicas, 600/s over 20 000 users, with [standing shares](docs/standing.md)",
		"plans, 12 replicas, shares of a half, filled: Redis calls per request of two keys", "2", "",
	},
	{
		"a hot tenant: one key, a replica at full speed",
		"Redis commands per allowed decision, hot key, one process at full speed", "1",
		"decisions per second, hot key, one process at full speed",
	},
	{
		"an address limit under attack: 10 000/s of one address at a replica",
		"Redis commands per denied decision, one process, 10 000/s on one exhausted key of 100 per hour", "1", "",
	},
}

// writeGains writes the table into a page, if each of its claims was measured.
func writeGains(page string, values map[string]float64) error {
	rows := [][]string{{"your keys", "calls to Redis per request", "with redis_rate"}}
	for _, g := range gains {
		row := []string{g.who, "", g.peer}
		for _, claim := range []string{g.claim, g.speed} {
			if _, ok := values[claim]; !ok && claim != "" {
				return fmt.Errorf("nobody claimed %q", claim)
			}
		}
		if row[1] = "**" + calls(values[g.claim]) + "**"; g.speed != "" {
			row[0] += ", " + round(values[g.speed]) + "/s"
		}
		rows = append(rows, row)
	}
	return docpage.Write(page, "gains", docpage.Table(rows))
}

// calls writes a number of calls per request: 0.18, or 1 in 20 000.
func calls(x float64) string {
	if x >= 0.01 {
		return fmt.Sprintf("%.2f", x)
	}
	return "1 in " + round(1/x)
}

// round writes a number with one digit that is not 0: 20 000.
func round(x float64) string {
	step := math.Pow(10, math.Floor(math.Log10(x)))
	text := fmt.Sprintf("%.0f", math.Round(x/step)*step)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + " " + text[i:]
	}
	return text
}
