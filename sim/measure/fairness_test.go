package measure

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A process, or a key, starves from its first refusal to its last one before it admits something.
func TestStarved(t *testing.T) {
	m := New(made(twoLimits))
	ask(m, 1*s, 0, 0, "a", 1, 1)
	ask(m, 2*s, 0, 0, "a", 1, 0)
	ask(m, 3*s, 0, 0, "b", 1, 1) // the process has admitted, the key has not
	ask(m, 4*s, 0, 0, "a", 1, 0)
	ask(m, 5*s, 1, 0, "a", 1, 0) // of the other process the first: 3 s of the key
	ask(m, 6*s, 1, 0, "a", 1, 1)
	ask(m, 7*s, 0, 0, "a", 2, 0)   // of process 0 it is 3 s since 4 s
	ask(m, 12*s, 0, 0, "a", 1, 0)  // 8 s, 2 s of them during; of the key 5 s and 2 s
	ask(m, 13*s, 0, 1, "a", 1, 1)  // another limit
	ask(m, 29*s, 0, 0, "b", 1, 0)  // 25 s, of which 9 s after
	ask(m, 90*s, 0, 0, "b", 1, 0)  // a minute without a request: anew
	ask(m, 140*s, 0, 0, "b", 1, 0) // 50 s; the run is over, and this belongs to its end
	r := m.Report(140 * s)
	near(t, "before, process", phase(t, r, "before").StarvedProcess, 3000)
	near(t, "before, key", phase(t, r, "before").StarvedKey, 3000)
	near(t, "during, process", phase(t, r, "during").StarvedProcess, 2000)
	near(t, "during, key", phase(t, r, "during").StarvedKey, 2000)
	near(t, "after, process", phase(t, r, "after").StarvedProcess, 50_000)
	near(t, "after, key", phase(t, r, "after").StarvedKey, 50_000)
	near(t, "users, process", r.Limits["users"].StarvedProcess, 0)

	m = New(made())
	ask(m, 1*s, 0, 0, "a", 1, 0)
	ask(m, 3*s, 0, 0, "a", 1, 0)
	m.Joined(4*s, 0) // a new one in its place
	ask(m, 4*s, 0, 0, "b", 1, 0)
	late := m.Asked(5*s, 1, 0, "c", 1)
	m.Decided(6*s, late, granted) // it waited, and nobody else had anything meanwhile
	left := m.Asked(7*s, 1, 0, "c", 1)
	m.Decided(8500*ms, left, tiered.Decision{Reason: tiered.Canceled}) // a caller who left had nothing either
	r = m.Report(30 * s)
	near(t, "process", r.Metrics.StarvedProcess, 2000)
	near(t, "key", r.Metrics.StarvedKey, 2000)
	near(t, "without a decision", phase(t, r, "after").StarvedProcess, -1)
}

// Of each process and each key the part of what it was due.
func TestFairnessByKey(t *testing.T) {
	m := New(made(expecting("least_key", ">=", 0.2, 0, 10*s), expecting("jain_keys", ">=", 0.9, 0, 10*s)))
	ask(m, 1*s, 0, 0, "all", 4, 4)
	ask(m, 1*s, 1, 0, "half", 4, 2)
	ask(m, 1*s, 1, 0, "greedy", 30, 12) // 10 is what the ideal admits: it has all it is due, and more
	ask(m, 12*s, 1, 0, "half", 2, 0)
	r := m.Report(30 * s)
	x := phase(t, r, "before")
	near(t, "before, jain", x.JainKeys, 2.5*2.5/(3*2.25))
	near(t, "before, least key", x.LeastKey, 0.5)
	near(t, "before, least process", x.LeastProcess, 0.411764) // 14 of 34
	want(t, "during", phase(t, r, "during").JainKeys, -1)
	near(t, "during, least key", phase(t, r, "during").LeastKey, 0)
	near(t, "during, least process", phase(t, r, "during").LeastProcess, 0)
	near(t, "after", phase(t, r, "after").LeastKey, -1)
	near(t, "all, least key", r.Metrics.LeastKey, 0.333333) // 2 of 6
	near(t, "an expectation", r.Expectations[0].Value, 0.5)
	near(t, "an expectation", r.Expectations[1].Value, 2.5*2.5/(3*2.25))

	m = New(made())
	ask(m, 1*s, 0, 0, "k", 1, 1)
	m.Decided(2*s, m.Asked(2*s, 0, 0, "k", 1), tiered.Decision{Reason: tiered.Canceled})
	near(t, "who left", m.Report(30*s).Metrics.LeastKey, 1)

	// A request that is decided in the next part belongs to the part in which it was made, or to none.
	m = New(made())
	one, other := m.Asked(10*s-ms, 0, 0, "k", 1), m.Asked(10*s-ms, 0, 0, "k", 1)
	m.Decided(10*s+ms, one, limited)
	ask(m, 10*s+2*ms, 0, 0, "k", 1, 1)
	m.Decided(10*s+3*ms, other, limited)
	r = m.Report(30 * s)
	near(t, "during", phase(t, r, "during").LeastKey, 1)
	near(t, "all", r.Metrics.LeastKey, 0.333333)
}

// Keys that were at rest and forgotten count as those that are kept: whatever their number, the figures are the same.
func TestFairnessOfManyKeys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		got := rapid.SliceOfN(rapid.IntRange(0, 4), 5, 5).Draw(t, "of four")
		got[0] = 4 // who was refused last is not forgotten so soon
		report := func(keys int) *Report {
			m := New(made(func(x *scenario.Scenario) { x.Limits[0].Tokens = 1000 }))
			for i := range keys {
				ask(m, ms+time.Duration(i)*100*time.Microsecond, 0, 0, name(i), 4, got[i%5])
			}
			if keys > sweepLeast && len(m.keys[0].all) == keys {
				t.Fatalf("none of %d keys was forgotten", keys)
			}
			return m.Report(30 * s)
		}
		few, many := report(5), report(sweepLeast/5*5+25)
		near(t, "jain", many.Metrics.JainKeys, few.Metrics.JainKeys)
		near(t, "least", many.Metrics.LeastKey, few.Metrics.LeastKey)
	})
}
