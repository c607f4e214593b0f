package tiered

import (
	"fmt"

	"github.com/tiered-limiter/tiered-limiter/local"
)

// CheckCost returns why no request of a valid policy that costs n is ever admitted, or nil. A policy with PerKey may give
// some keys a larger limit, and is not asked: then only n itself is checked. [Blocked] admits nothing on purpose, at any
// cost.
func (p Policy) CheckCost(n int64) error {
	if n < 1 || n > maxTokens {
		return fmt.Errorf("tiered: the cost is %d: must be 1 to 2^40", n)
	}
	if p.PerKey != nil {
		return nil
	}
	if limit, field := p.largest(); field != "Limit" {
		q := p
		if q.Limit, q.Plans = limit, nil; q.CheckCost(n) == nil {
			return nil
		}
		return fmt.Errorf("tiered: the cost is %d: must be at most %d, the burst of Policy.%s", n, limit.burst(), field)
	}
	rest, _, split := p.split() // what Redis has
	for i, limit := range p.limits() {
		most := rest.limits()[i].burst()
		if limit.rule() != local.ByLimit || n <= most {
			continue
		}
		of, field, parts := "Limit", "Tokens", ""
		if i > 0 {
			of = fmt.Sprintf("Also[%d]", i-1)
		}
		if limit.Burst > 0 {
			field = "Burst"
		}
		if split {
			parts = fmt.Sprintf(" and Policy.Standing is %v", p.Standing)
		}
		return fmt.Errorf("tiered: the cost is %d: must be at most %d, because Policy.%s.%s is %d%s",
			n, most, of, field, limit.burst(), parts)
	}
	return nil
}
