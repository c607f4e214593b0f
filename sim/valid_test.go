package sim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// small draws a valid scenario of a few seconds: something of everything that the language has.
func small(t *rapid.T) *scenario.Scenario {
	number := func(least, most int, unit string) string {
		return fmt.Sprint(rapid.IntRange(least, most).Draw(t, "number"), unit)
	}
	one := func(words ...string) string { return rapid.SampledFrom(words).Draw(t, "word") }
	// takes are the fields of a kind, of which some may be left out.
	takes := func(k scenario.Kind, values map[string]string) (text string) {
		for _, field := range k.Takes {
			if values[field] == "" {
				t.Fatalf("this test knows no value of %s", field)
			}
			if slices.Contains(k.Needs, field) || rapid.Bool().Draw(t, field) {
				text += ", " + field + ": " + values[field]
			}
		}
		return text
	}
	var b strings.Builder
	fmt.Fprintf(&b, "name: small\nlimits:\n  - {name: a, rate: %s, burst: %s}\n  - {name: b, rate: %s}\n",
		number(1, 500, "/s"), number(1, 500, ""), number(1, 500, "/min"))
	fmt.Fprintf(&b, "at_once: {places: %s, life: %s}\n", number(1, 20, ""), number(1, 3, "s"))
	fmt.Fprintf(&b, "fleet: {n: %s, mode: %s, maxkeys: %s, processes: %s}\ntraffic:\n",
		number(1, 6, ""), one("local", "open", "closed"), number(1, 100, ""), number(0, 10, ""))
	for i := range rapid.IntRange(1, 4).Draw(t, "streams") {
		shape := rapid.SampledFrom(scenario.Shapes).Draw(t, "shape")
		runs := ""
		if i == 0 || rapid.Bool().Draw(t, "runs") {
			runs = ", runs: " + number(1, 300, "ms")
		}
		fmt.Fprintf(&b, "  - {shape: %s%s, limit: %s, procskew: %s, cost: 1, maxcost: %s, cancel: %s, keys: %s%s}\n",
			shape.Name, runs, one("a", "b"), number(0, 2, ""), number(1, 50, ""), number(0, 100, "%"),
			one("-1", "1", "2, keyskew: 2", "50", "50, keyskew: 1"), takes(shape, map[string]string{
				"rate": number(1, 500, "/s"), "to": number(1, 500, "/s"), "every": "500ms", "for": number(1, 500, "ms"),
				"clients": number(1, 20, ""), "think": number(10, 300, "ms"), "retry": number(0, 5, ""),
			}))
	}
	fmt.Fprintf(&b, "net: {rtt: %s, jitter: %s}\nrun: 2s\nwarmup: 100ms\nfaults:\n", number(1, 100_000, "us"),
		number(0, 50_000, "us"))
	for range rapid.IntRange(1, 6).Draw(t, "faults") {
		k := rapid.SampledFrom(scenario.Kinds).Draw(t, "kind")
		at := rapid.IntRange(100, 1999).Draw(t, "at")
		fmt.Fprintf(&b, "  - {at: %dms, kind: %s%s}\n", at, k.Name, takes(k, map[string]string{
			"for": number(1, 2000-at, "ms"), "error": one("LOADING", "NOAUTH", "WRONGTYPE", "ERR what is this"),
			"procs": one("1", "50%", "100%"), "only": one("requests", "replies"), "chance": "30%",
			"delay": number(1, 300, "ms"), "jitter": number(0, 100, "ms"), "up": number(1, 300, "ms"),
			"down": number(1, 300, "ms"), "by": one("1h", "-1h", "300ms", "-300ms"), "lose": number(1, 3000, "ms"),
			"restart": number(1, 3000, "ms"), "every": number(10, 300, "ms"), "n": number(1, 9, ""),
			"keys": number(1, 300, ""),
		}))
	}
	s, err := scenario.Parse(b.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	return s
}

// Whatever happens on top of whatever, a run ends, leaves nothing behind, spends nothing that was
// not granted, and counts all that it admits.
func TestAnyScenario(t *testing.T) {
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		s := small(rt)
		r, err := sim.Run(s, &sim.Options{Seed: rapid.Uint64().Draw(rt, "seed")})
		if err != nil {
			rt.Fatalf("%v\n%v", err, s)
		}
		if m := r.Metrics; m.Unaccounted != 0 {
			rt.Fatalf("%d tokens come from nowhere or are not counted\n%v", m.Unaccounted, s)
		}
	})
	t.Logf("%d scenarios", runs)
}
