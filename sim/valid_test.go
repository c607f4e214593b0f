package sim

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// small draws a valid scenario of a few seconds: something of everything that the language has.
func small(t *rapid.T) *scenario.Scenario {
	millis := func(least, most int, what string) string {
		return fmt.Sprintf("%dms", rapid.IntRange(least, most).Draw(t, what))
	}
	var b strings.Builder
	n := rapid.IntRange(1, 6).Draw(t, "n")
	fmt.Fprintf(&b, "name: small\nlimits:\n  - {name: a, rate: %d/s, burst: %d}\n  - {name: b, rate: %d/min}\n",
		rapid.IntRange(1, 500).Draw(t, "rate"),
		rapid.IntRange(1, 500).Draw(t, "burst"), rapid.IntRange(1, 500).Draw(t, "per minute"))
	fmt.Fprintf(&b, "fleet: {n: %d, mode: %s, maxkeys: %d, processes: %d}\ntraffic:\n", n,
		rapid.SampledFrom([]string{"local", "open", "closed"}).Draw(t, "mode"),
		rapid.IntRange(1, 100).Draw(t, "maxkeys"), rapid.IntRange(0, 10).Draw(t, "processes"))
	for range rapid.IntRange(1, 4).Draw(t, "streams") {
		shape := rapid.SampledFrom(scenario.Shapes).Draw(t, "shape").Name
		fmt.Fprintf(&b, "  - {shape: %s, limit: %s", shape, rapid.SampledFrom([]string{"a", "b"}).Draw(t, "limit"))
		switch shape {
		case "closed":
			fmt.Fprintf(&b, ", clients: %d, think: %s, retry: %d", rapid.IntRange(1, 20).Draw(t, "clients"),
				millis(10, 300, "think"), rapid.IntRange(0, 5).Draw(t, "retry"))
		case "poisson":
			fmt.Fprintf(&b, ", rate: %d/s", rapid.IntRange(1, 500).Draw(t, "requests"))
		case "bursts":
			fmt.Fprintf(&b, ", rate: %d/s, every: 500ms, for: %s", rapid.IntRange(1, 500).Draw(t, "requests"),
				millis(1, 500, "for"))
		case "ramp":
			fmt.Fprintf(&b, ", rate: %d/s, to: %d/s", rapid.IntRange(1, 500).Draw(t, "requests"),
				rapid.IntRange(1, 500).Draw(t, "to"))
		case "diurnal":
			fmt.Fprintf(&b, ", rate: %d/s, to: %d/s, every: 1s", rapid.IntRange(1, 500).Draw(t, "requests"),
				rapid.IntRange(1, 500).Draw(t, "to"))
		default:
			t.Fatalf("this test knows no traffic of the shape %s", shape)
		}
		if keys := rapid.SampledFrom([]int{-1, 1, 2, 50}).Draw(t, "keys"); keys > 1 {
			fmt.Fprintf(&b, ", keys: %d, keyskew: %d", keys, rapid.IntRange(0, 2).Draw(t, "keyskew"))
		} else {
			fmt.Fprintf(&b, ", keys: %d", keys)
		}
		fmt.Fprintf(&b, ", procskew: %d, cost: 1, maxcost: %d, cancel: %d%%}\n", rapid.IntRange(0, 2).Draw(t, "procskew"),
			rapid.IntRange(1, 50).Draw(t, "maxcost"), rapid.IntRange(0, 100).Draw(t, "cancel"))
	}
	fmt.Fprintf(&b, "net: {rtt: %dus, jitter: %dus}\nrun: 2s\nwarmup: 100ms\nfaults:\n", rapid.IntRange(1, 100_000).Draw(t, "rtt"),
		rapid.IntRange(0, 50_000).Draw(t, "jitter"))
	for range rapid.IntRange(1, 6).Draw(t, "faults") {
		k := rapid.SampledFrom(scenario.Kinds).Draw(t, "kind")
		at := rapid.IntRange(100, 1999).Draw(t, "at")
		fmt.Fprintf(&b, "  - {at: %dms, kind: %s", at, k.Name)
		for _, p := range k.Takes {
			if p == "for" && rapid.Bool().Draw(t, "to the end") {
				continue
			}
			value, known := map[string]string{
				"for": millis(1, 2000-at, "lasts"),
				"error": rapid.SampledFrom([]string{"LOADING", "NOAUTH", "WRONGTYPE", "ERR what is this"}).Draw(t,
					"error"),
				"procs": rapid.SampledFrom([]string{"1", "50%", "100%"}).Draw(t, "procs"),
				"only":  rapid.SampledFrom([]string{"requests", "replies"}).Draw(t, "only"), "chance": "30%",
				"delay": millis(1, 300, "delay"), "jitter": millis(0, 100, "jitter"), "up": millis(1, 300, "up"),
				"down":    millis(1, 300, "down"),
				"by":      rapid.SampledFrom([]string{"1h", "-1h", "300ms", "-300ms"}).Draw(t, "by"),
				"lose":    millis(1, 3000, "lose"),
				"restart": millis(1, 3000, "restart"), "every": millis(10, 300, "every"),
				"n":    fmt.Sprint(rapid.IntRange(1, 9).Draw(t, "scaled")),
				"keys": fmt.Sprint(rapid.IntRange(1, 300).Draw(t, "flood")),
			}[p]
			if !known {
				t.Fatalf("this test knows no parameter %s", p)
			}
			fmt.Fprintf(&b, ", %s: %s", p, value)
		}
		b.WriteString("}\n")
	}
	s, err := scenario.Parse(b.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	return s
}

// Whatever happens on top of whatever, a run ends, leaves nothing behind, spends nothing that was not granted, and
// counts all that it admits.
func TestAnyScenario(t *testing.T) {
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		s := small(rt)
		r, err := Run(s, &Options{Seed: rapid.Uint64().Draw(rt, "seed")})
		if err != nil {
			rt.Fatalf("%v\n%v", err, s)
		}
		if m := r.Metrics; m.Unaccounted != 0 {
			rt.Fatalf("%d tokens come from nowhere or are not counted\n%v", m.Unaccounted, s)
		}
	})
	t.Logf("%d scenarios", runs)
}
