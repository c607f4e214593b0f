package scenario

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// draw makes a valid scenario. It knows the rules by itself: that Validate agrees is the first thing that is checked.
type draw struct {
	*rapid.T
	s *Scenario
}

func (d draw) yes(label string) bool { return rapid.Bool().Draw(d.T, label) }

func (d draw) maybe(label string, f func()) {
	if d.yes(label) {
		f()
	}
}

func (d draw) int(least, most int64, label string) int64 {
	return rapid.OneOf(rapid.Int64Range(least, most), rapid.Int64Range(least, min(most, least+20))).Draw(d.T, label)
}

func (d draw) time(least, most Duration, label string) Duration {
	grain := rapid.SampledFrom([]Duration{1, 1000, 1e6, 1e9, 60e9}).Draw(d.T, label+" grain")
	return min(max(least, Duration(d.int(int64(least), int64(most), label))/grain*grain), most)
}

func (d draw) float(least, most float64, label string) float64 {
	v := rapid.Float64Range(least, most).Draw(d.T, label)
	if round, digits := 0.0, math.Pow10(int(d.int(0, 4, label+" digits"))); d.yes(label + " round") {
		round = math.Round(v*digits) / digits
		v = min(max(least, round), most)
	}
	return v
}

var (
	nameOf = rapid.StringMatching(`[A-Za-z0-9_.-]{1,64}`)
	textOf = rapid.StringOfN(rapid.RuneFrom([]rune(`abc XYZ 09_-"\#=,'/<&>é世界…ﬃ`)), 1, 100, -1)
)

func valid(t *rapid.T) *Scenario {
	d := draw{t, &Scenario{}}
	s := d.s
	s.Name = textOf.Draw(t, "name")
	d.maybe("learn", func() { s.Learn = textOf.Draw(t, "learn text") })
	s.Length = d.time(4*Duration(time.Second), maxLength, "run")
	d.maybe("warmup", func() { s.WarmUp = d.time(milli, s.Length-Duration(time.Second), "warmup") })
	names := rapid.SliceOfNDistinct(nameOf, 1, 4, rapid.ID).Draw(t, "limits")
	quarter := int64(maxTokens)
	for _, n := range names {
		l := Limit{Name: n, Tokens: d.int(1, maxTokens, "tokens"), Per: d.time(1000, maxPer, "per") / 1000 * 1000}
		burst := l.Tokens
		d.maybe("burst", func() {
			l.Burst = d.int(1, maxTokens, "burst tokens")
			burst = l.Burst
		})
		s.Limits = append(s.Limits, l)
		quarter = min(quarter, (burst+3)/4)
	}
	f := &s.Fleet
	f.N = int(d.int(1, maxFleet, "n"))
	f.Mode = rapid.SampledFrom([]string{"", "local", "open", "closed"}).Draw(t, "mode")
	f.Size = d.int(-1, quarter, "size")
	d.maybe("period", func() { f.Period = d.time(5*milli, minute, "period time") })
	f.Processes = int(d.int(0, 1<<20, "processes"))
	d.maybe("budget", func() { f.Budget = d.time(milli, minute, "budget time") })
	d.maybe("timeout", func() {
		least := f.Budget
		if least == 0 {
			least = defaultBudget
		}
		f.Timeout = d.time(least, minute, "timeout time")
	})
	f.MaxKeys, f.InFlight = int(d.int(0, 1<<30, "maxkeys")), int(d.int(0, 1<<16, "inflight"))
	for range d.int(1, 4, "traffic") {
		s.Traffic = append(s.Traffic, d.traffic(names))
	}
	d.maybe("rtt", func() { s.Net.RTT = d.time(1000, 10*second, "rtt time") })
	s.Net.Jitter = d.time(0, 10*second, "jitter")
	for range d.int(0, 5, "faults") {
		s.Faults = append(s.Faults, d.fault())
	}
	s.sortFaults()
	for range d.int(0, 5, "expect") {
		s.Expect = append(s.Expect, d.expect(names))
	}
	if some := rapid.SliceOfNDistinct(rapid.SampledFrom(Happenings), 0, 5, rapid.ID).Draw(t, "sometimes"); len(some) > 0 {
		s.Sometimes = some
	}
	d.sweep(names)
	return s
}

func (d draw) traffic(limits []string) Traffic {
	r := Traffic{Shape: rapid.SampledFrom([]string{"poisson", "bursts", "ramp", "diurnal", "closed"}).Draw(d.T, "shape")}
	if len(limits) > 1 || d.yes("limit") {
		r.Limit = rapid.SampledFrom(limits).Draw(d.T, "limit name")
	}
	if r.Shape == "closed" {
		r.Clients, r.Think, r.Retry = int(d.int(1, maxKeys, "clients")), d.time(0, hour, "think"), int(d.int(0, 1000, "retry"))
	} else {
		r.Rate = d.float(leastRate, maxRate, "rate")
	}
	if r.Shape == "ramp" || r.Shape == "diurnal" {
		r.To = d.float(leastRate, maxRate, "to")
	}
	if r.Shape == "bursts" || r.Shape == "diurnal" {
		r.Every = d.time(milli, maxLength, "every")
	}
	if r.Shape == "bursts" {
		r.For = d.time(milli, r.Every, "for")
	}
	if r.Keys = d.int(-1, maxKeys, "keys"); r.Keys > 1 {
		r.KeySkew = d.float(0, 10, "keyskew")
	}
	r.ProcSkew, r.Cost = d.float(0, 10, "procskew"), d.int(0, maxTokens, "cost")
	d.maybe("maxcost", func() { r.MaxCost = d.int(max(1, r.Cost), maxTokens, "maxcost tokens") })
	r.Cancel = d.float(0, 1, "cancel")
	return r
}

func (d draw) fault() Fault {
	k := rapid.SampledFrom(Kinds).Draw(d.T, "kind")
	f := Fault{Kind: k.Name, At: d.time(d.s.MeasuredFrom(), d.s.Length-milli, "at")}
	all := k.Takes
	if k.Lasts {
		all = append(all[:len(all):len(all)], "for")
	}
	for _, name := range all {
		needed := false
		for _, n := range k.Needs {
			needed = needed || n == name
		}
		if needed || d.yes(name) {
			d.parameter(&f, name)
		}
	}
	return f
}

func (d draw) parameter(f *Fault, name string) {
	some := func() Duration { return d.time(milli, hour, name) }
	switch name {
	case "for":
		f.For = d.time(1000, d.s.Length-f.At, name)
	case "procs":
		if d.yes("share") {
			f.Procs.Share = d.float(leastShare, 1, name)
		} else {
			f.Procs.Count = int(d.int(1, int64(d.s.Fleet.N), name))
		}
	case "only":
		f.Only = rapid.SampledFrom([]string{"requests", "replies"}).Draw(d.T, name)
	case "chance":
		f.Chance = d.float(leastShare, 1, name)
	case "delay":
		f.Delay = some()
	case "jitter":
		f.Jitter = some()
	case "up":
		f.Up = some()
	case "down":
		f.Down = some()
	case "by":
		if f.By = some(); d.yes("back") {
			f.By = -f.By
		}
	case "lose":
		f.Lose = some()
	case "restart":
		f.Restart = some()
	case "every":
		f.Every = some()
	case "n":
		f.N = int(d.int(1, maxFleet, name))
	case "keys":
		f.Keys = d.int(1, maxLost, name)
	case "error":
		f.Error = rapid.StringMatching(`[A-Z][A-Z0-9]{0,10}( [ -~]{0,80})?`).Draw(d.T, name)
	default:
		d.Fatalf("a fault that takes %s, which this test does not know", name)
	}
}

func (d draw) expect(limits []string) Expectation {
	m := rapid.SampledFrom(Metrics).Draw(d.T, "metric")
	e := Expectation{Metric: m.Name, Op: rapid.SampledFrom([]string{"<=", ">="}).Draw(d.T, "op")}
	least, most := 0.0, map[Unit]float64{Tokens: 1e15, Ratio: 1e6, Seconds: 86400, PerSec: 1e9, Count: 1e15}[m.Unit]
	if m.Unit == Seconds {
		least = 1e-9
	}
	e.Value = rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(least, most), rapid.Float64Range(least, 1)).Draw(d.T, "value")
	if d.yes("rounded") && e.Value >= 0.001 {
		e.Value = math.Round(e.Value*1000) / 1000
	}
	from := d.s.MeasuredFrom()
	d.maybe("after", func() {
		from = d.time(from, d.s.Length-milli, "after time")
		e.After = from
	})
	d.maybe("before", func() { e.Before = d.time(from+1, d.s.Length, "before time") })
	if e.Before > 0 && e.Before < milli {
		e.Before = 0
	}
	d.maybe("of limit", func() { e.Limit = rapid.SampledFrom(limits).Draw(d.T, "limit") })
	return e
}

func (d draw) sweep(limits []string) {
	d.maybe("sweep size", func() {
		d.s.Sweep = append(d.s.Sweep, Axis{"fleet.size", []string{"0", "-1", "1_000"}})
	})
	d.maybe("sweep rate", func() {
		path := "limit." + rapid.SampledFrom(limits).Draw(d.T, "limit") + ".rate"
		d.s.Sweep = append(d.s.Sweep, Axis{path, []string{"5/min", "1/300µs"}})
	})
	for i, f := range d.s.Faults {
		if f.Kind == "refuse" {
			d.s.Sweep = append(d.s.Sweep, Axis{"at." + string(rune('1'+i)) + ".error", []string{`ERR say "#1, 2=3"`, "OOM"}})
			return
		}
	}
}

// What String writes parses to the same, and so does the JSON.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := valid(t)
		if err := s.Validate(); err != nil {
			t.Fatalf("valid, says the generator: %v\n%s", err, s)
		}
		text := s.String()
		same(t, s, text, func() (*Scenario, error) { return Parse(text) })
		noisy := strings.ReplaceAll(text, "\n", "  # \"so \r\n\t \n")
		same(t, s, noisy, func() (*Scenario, error) { return Parse(noisy) })
		for _, indent := range []string{"", "  "} {
			data, err := json.MarshalIndent(s, "", indent)
			if err != nil {
				t.Fatal(err)
			}
			same(t, s, string(data), func() (*Scenario, error) { return ParseJSON(data) })
		}
		if c := s.Clone(); !reflect.DeepEqual(c, s) {
			t.Fatalf("a clone is\n%+v, not\n%+v", c, s)
		}
	})
}

func same(t *rapid.T, s *Scenario, from string, parse func() (*Scenario, error)) {
	t.Helper()
	got, err := parse()
	if err != nil {
		t.Fatalf("%v\nof\n%s", err, from)
	}
	if !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v\nfrom\n%s\nwas\n%+v", got, from, s)
	}
	if again := got.String(); again != s.String() {
		t.Fatalf("printed\n%s\nand then\n%s", s, again)
	}
}
