package tieredtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

// A quota of a year of months, of a service with three processes, takes less than a second for
// each month. After each all processes know each other, and the fail mode divides the
// limit by them.
func TestMonthsPass(t *testing.T) {
	before := time.Now() // real time, outside of the bubble
	synctest.Test(t, func(t *testing.T) {
		l := tieredtest.New(t, tiered.Policy{Name: "month", Limit: tiered.PerMonth(300), Algorithm: tiered.FixedWindow})
		l.Replica()
		l.Replica()
		for month := range 12 {
			if n, d := l.AllowAtMost(t.Context(), "ann", 400); n != 300 || d.Burst != 300 {
				t.Fatalf("month %d: %d were admitted", month, n)
			}
			d := l.Allow(t.Context(), "ann")
			if d.Allowed {
				t.Fatalf("month %d: one more was admitted", month)
			}
			l.Advance(d.RetryAfter - time.Second)
			if d := l.Allow(t.Context(), "ann"); d.Allowed {
				t.Fatalf("month %d: one more was admitted a second before the end", month)
			}
			if n := l.Group().Stats().Policies["month"].Processes.Sharing; n != 3 {
				t.Fatalf("month %d: %d processes", month, n)
			}
			l.Advance(time.Second)
		}
		l.Fail()
		if n, _ := l.AllowAtMost(t.Context(), "bob", 300); n > 100 {
			t.Errorf("the fallback of one of three processes admitted %d", n)
		}
	})
	if took := time.Since(before); took > 12*time.Second {
		t.Errorf("a year took %v", took)
	}
}
