package remote_test

import (
	"fmt"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// The scripts take what the constants say, by which policies are validated, and the model takes the
// same: the end of each range, and nothing beyond it.
func TestScriptsTakeTheEnds(t *testing.T) {
	all := engines(t)
	for a := range lua.Algorithm(lua.Algorithms) {
		for _, c := range []struct {
			name   string
			of     func(a lua.Algorithm) bool // nil for all
			change func(c *lua.Call, beyond int64)
		}{
			{"tokens", nil, func(c *lua.Call, beyond int64) { c.Cap = lua.MostTokens + beyond }},
			{"tokens per period", severalBuckets, func(c *lua.Call, beyond int64) { c.Tokens = lua.MostTokens + beyond }},
			{"period", noSpan, func(c *lua.Call, beyond int64) { c.Period = lua.LongestPeriod + beyond }},
			{"lease", noSpan, func(c *lua.Call, beyond int64) { c.TTL = lua.LongestLease + beyond }},
			{"span", spans, func(c *lua.Call, beyond int64) { c.Span = lua.MostSpan + beyond }},
			{"window", spans, func(c *lua.Call, beyond int64) {
				c.Span, c.Period = lua.MostSpan, lua.LongestWindow/lua.MostSpan+beyond
			}},
			{
				"limits", func(a lua.Algorithm) bool { return spans(a) || severalBuckets(a) },
				func(c *lua.Call, beyond int64) {
					for i := range lua.MostLimits - 1 + beyond {
						c.Also = append(c.Also, lua.Limit{Cap: 9, Tokens: 1, Period: c.Period + i + 1, Span: c.Span})
					}
				},
			},
		} {
			if c.of != nil && !c.of(a) {
				continue
			}
			for _, e := range all {
				for beyond := range int64(2) {
					call := take(of(a, fmt.Sprint(a, c.name), 10, minute, sec), 1)
					c.change(&call, beyond)
					r := e.at(t, scriptStart, call)
					if refused := r.err != ""; refused != (beyond > 0) {
						t.Errorf("%s, algorithm %d, %s, %d beyond the end: %v", e.name, a, c.name, beyond, r)
					}
				}
			}
		}
	}
}

func severalBuckets(a lua.Algorithm) bool { return a == lua.TokenBuckets }
func spans(a lua.Algorithm) bool          { return a == lua.SlidingWindow }
func noSpan(a lua.Algorithm) bool         { return !spans(a) }
