package remote_test

import (
	"fmt"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// The scripts take what the constants say, by which policies are validated, and the model takes the same: the end of
// each range, and nothing beyond it.
func TestScriptsTakeTheEnds(t *testing.T) {
	all := engines(t)
	for a := remote.TokenBucket; a <= remote.TokenBuckets; a++ {
		for _, c := range []struct {
			name   string
			of     func(a remote.Algorithm) bool // nil for all
			change func(c *remote.Call, beyond int64)
			most   bool // there is an end here
		}{
			{"tokens", nil, func(c *remote.Call, beyond int64) { c.Cap = remote.MostTokens + beyond }, true},
			{"tokens per period", severalBuckets, func(c *remote.Call, beyond int64) { c.Tokens = remote.MostTokens + beyond }, true},
			{"period", noSpan, func(c *remote.Call, beyond int64) { c.Period = remote.LongestPeriod + beyond }, a != remote.TokenBucket},
			{"lease", noSpan, func(c *remote.Call, beyond int64) { c.TTL = remote.LongestLease + beyond }, true},
			{"span", spans, func(c *remote.Call, beyond int64) { c.Span = remote.MostSpan + beyond }, true},
			{"window", spans, func(c *remote.Call, beyond int64) {
				c.Span, c.Period = remote.MostSpan, remote.LongestWindow/remote.MostSpan+beyond
			}, true},
			{"limits", func(a remote.Algorithm) bool { return spans(a) || severalBuckets(a) }, func(c *remote.Call, beyond int64) {
				for i := range remote.MostLimits - 1 + beyond {
					c.Also = append(c.Also, remote.Limit{Cap: 9, Tokens: 1, Period: c.Period + i + 1, Span: c.Span})
				}
			}, true},
		} {
			if c.of != nil && !c.of(a) {
				continue
			}
			for _, e := range all {
				for beyond := range int64(2) {
					call := take(of(a, fmt.Sprint(a, c.name), 10, minute, sec), 1)
					c.change(&call, beyond)
					r := e.at(t, scriptStart, call)
					if refused := r.err != ""; refused != (beyond > 0 && c.most) {
						t.Errorf("%s, algorithm %d, %s, %d beyond the end: %v", e.name, a, c.name, beyond, r)
					}
				}
			}
		}
	}
}

func severalBuckets(a remote.Algorithm) bool { return a == remote.TokenBuckets }
func spans(a remote.Algorithm) bool          { return a == remote.SlidingWindow }
func noSpan(a remote.Algorithm) bool         { return !spans(a) }
