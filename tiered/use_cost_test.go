package tiered_test

import (
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// N sets what a use costs, before WithLimit or after it, and changes no other use.
func TestCostOfAUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := told(t, tiered.Policy{Limit: tiered.PerMinute(10)})
		one, plan := l.For("k"), tiered.PerMinute(100)
		for name, c := range map[string]struct {
			use    tiered.Use
			cost   int64
			reason tiered.Reason
		}{
			"one":       {one, 1, tiered.Granted},
			"three":     {one.N(3), 3, tiered.Granted},
			"the last":  {one.N(3).N(2), 2, tiered.Granted},
			"none":      {one.N(0), 0, tiered.InvalidCost},
			"too many":  {one.N(11), 11, tiered.ExceedsBurst},
			"N first":   {l.For("a").N(60).WithLimit(plan), 60, tiered.Granted},
			"N last":    {l.For("b").WithLimit(plan).N(60), 60, tiered.Granted},
			"of no use": {tiered.Use{}.N(3), 0, tiered.Unknown},
		} {
			if d := c.use.Allow(t.Context()); d.Cost != c.cost || d.Reason != c.reason {
				t.Errorf("%s: %v", name, d)
			}
		}
	})
}
