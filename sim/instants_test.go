package sim_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim"
)

// In whatever order callers join, their instants are the same, no two are equal, none is reserved
// before all callers of that instant have joined, and a request from outside continues at an
// instant that nobody reserved.
func TestInstants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.IntRange(1, 8).Draw(t, "steps")
		var tt [2]sim.Instants
		theirs := map[time.Duration]bool{}
		now := time.Duration(0)
		for range steps {
			// most of them within the slack of those before
			now += time.Duration(rapid.IntRange(1, 30).Draw(t, "later"))
			numbers := rapid.SliceOfNDistinct(rapid.Uint64(), 0, 60, rapid.ID).Draw(t, "numbers")
			orders := [2][]uint64{numbers, rapid.Permutation(numbers).Draw(t, "another order")}
			var goes [2]map[uint64]time.Duration
			var enters [2]time.Duration
			for k := range tt {
				goes[k] = map[uint64]time.Duration{}
				var all []*sim.Instant
				for _, n := range orders[k] {
					all = append(all, tt[k].Join(now, n))
				}
				if k == 1 {
					slices.Reverse(all)
				}
				for _, w := range all {
					goes[k][w.Number()] = tt[k].Wait(now+1, w)
				}
				enters[k] = tt[k].Enter(now + 1)
			}
			for _, n := range numbers {
				at := goes[0][n]
				if at != goes[1][n] {
					t.Fatalf("%x goes on at %v or %v: by the order in which they came", n, at, goes[1][n])
				}
				if at <= now || at > now+1+sim.Slack+60*8 {
					t.Fatalf("%x came at %v and goes on at %v", n, now, at)
				}
				if theirs[at] {
					t.Fatalf("%v is the turn of two", at)
				}
				theirs[at] = true
			}
			if enters[0] != enters[1] {
				t.Fatalf("what comes at %v enters at %v or %v", now+1, enters[0], enters[1])
			}
			if theirs[enters[0]] {
				t.Fatalf("what comes at %v enters at %v, when somebody has his turn", now+1, enters[0])
			}
			if enters[0] > now+1 {
				theirs[enters[0]] = true
			}
			now++
		}
	})
}
