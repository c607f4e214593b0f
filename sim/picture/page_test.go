package picture_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// report is that of a minute in 600 steps. Redis is gone from 30 s to 45 s.
func report() *measure.Report {
	r := &measure.Report{
		Scenario: &scenario.Scenario{
			Name: "a dark quarter", Learn: "what an outage costs", Length: scenario.Duration(time.Minute),
			WarmUp: scenario.Duration(5 * time.Second), Fleet: scenario.Fleet{N: 20, Mode: "open"},
			Limits:  []scenario.Limit{{Name: "api", Limit: tiered.PerSecond(1000)}},
			Traffic: []scenario.Traffic{{Shape: "poisson", Rate: 1500}},
		},
		Seed: 7, Unseed: "0123456789abcdef", Version: "v1.2.3", Passed: true,
		FailModes: map[string]string{"api": "closed"},
		Metrics: measure.Metrics{
			OverAdmission: 271, Shortfall: .0272, Alone: 273, RedisCalls: 145, DecideMax: .02, DecideP99: .000402,
			Detect: 1.23, Heal: .991, Recovered: -1,
		},
		Phases: []measure.Phase{
			{Name: "before", FromS: 5, ToS: 30, Metrics: measure.Metrics{OverAdmission: 31}},
			{Name: "during", FromS: 30, ToS: 45, Metrics: measure.Metrics{OverAdmission: -1}},
		},
		Expectations: []measure.Outcome{
			{Text: "over_admission <= 700", Value: 271, Passed: true},
			{Text: "heal <= 2s", Value: -1},
			{Text: "denied_within <= 1% limit=api", Value: .005, Passed: true},
		},
		Sometimes: []measure.Happening{{Name: "breaker_open", Count: 3, Wanted: true}, {Name: "fallback", Wanted: true}, {}},
		Faults:    []measure.FaultSpan{{Text: "at 30s blackhole for=15s", FromS: 30, ToS: 45}},
		Series:    measure.Series{StepS: .1},
	}
	for i := range 600 {
		s, calls, out := &r.Series, 145.0, 0.0
		if i < 50 {
			calls = 193 // of the whole run the average is 149
		}
		if i >= 300 && i < 450 {
			out = 1
		}
		s.Offered, s.Admitted = append(s.Offered, 1500), append(s.Admitted, 1000+float64(i%2)*20)
		s.Alone, s.Open = append(s.Alone, 900*out), append(s.Open, out)
		s.Limit = append(s.Limit, 1000)
		s.Calls, s.MaxUs = append(s.Calls, calls), append(s.MaxUs, 400+19_600*out)
	}
	return r
}

// draw returns the page of a report and its elements. The page is XML as well: each element is
// closed.
func draw(t rapid.TB, r *measure.Report) (string, *node) {
	t.Helper()
	var b strings.Builder
	fatal.If(t, picture.HTML(&b, r))
	open := []*node{{}}
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String(), open[0]
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
		last := open[len(open)-1]
		switch x := token.(type) {
		case xml.StartElement:
			n := &node{name: x.Name.Local, attr: map[string]string{}}
			for _, a := range x.Attr {
				n.attr[a.Name.Local] = a.Value
			}
			last.children, open = append(last.children, n), append(open, n)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			last.children = append(last.children, &node{text: string(x)})
		}
	}
}

// node is an element, or a text.
type node struct {
	name, text string
	attr       map[string]string
	children   []*node
}

// all returns the elements of a name below n, in their order, and of a class or an id if one is
// given.
func (n *node) all(name, class string) (list []*node) {
	for _, c := range n.children {
		classes := strings.Fields(c.attr["class"] + " " + c.attr["id"])
		if (name == "" || c.name == name) && (class == "" || slices.Contains(classes, class)) {
			list = append(list, c)
		}
		list = append(list, c.all(name, class)...)
	}
	return list
}

// words are what a reader sees of an element, without those of some elements in it.
func (n *node) words(without ...string) string {
	all := n.text
	for _, c := range n.children {
		if !slices.Contains(without, c.name) {
			all += " " + c.words(without...)
		}
	}
	return strings.Join(strings.FieldsFunc(all, func(r rune) bool { return strings.ContainsRune(" \n\t", r) }), " ") // a no-break space is no space
}

func TestParts(t *testing.T) {
	text, page := draw(t, report())
	headings := ""
	for _, n := range slices.Concat(page.all("h1", ""), page.all("h2", ""), page.all("h3", "")) {
		headings += n.words("small") + "|"
	}
	if want := "a dark quarter|Figures|What was expected|Over time|Part by part|Run it again|" +
		"Offered and admitted|Open breakers|Redis calls|Longest decision|"; headings != want {
		t.Errorf("headings\n%s, want\n%s", headings, want)
	}
	for _, part := range []string{
		"What it shows: what an outage costs.", "✓ Passed", "3 of 5 expectations came true", "20 processes",
		"fail-open: without Redis each process admits everything", "fail-closed: without Redis each process refuses",
		"limit api: 1000/s", "blackhole for=15s 30s to 45s", "tiersim run FILE --seed 7",
		"0123456789abcdef", "v1.2.3", "From 5s to the end", report().Scenario.String()[:40],
	} {
		if !strings.Contains(page.words(), strings.Join(strings.Fields(part), " ")) {
			t.Errorf("no %q on the page", part)
		}
	}
	// The page fetches nothing and runs nothing.
	if found := regexp.MustCompile(`(?i)https?:|src=|href=|@import|url\(|<script`).FindString(text); found != "" {
		t.Errorf("the page has %q", found)
	}
	if !strings.Contains(text, `content="default-src 'none'; style-src 'unsafe-inline'`) {
		t.Error("the page does not forbid itself to load anything")
	}
}

// A page begins with its picture. Then come the figures, and then what was expected.
func TestOrder(t *testing.T) {
	text, _ := draw(t, report())
	at := -1
	for _, part := range []string{`<figure id="rates">`, "<h2>Figures</h2>", "<h2>What was expected</h2>", `<figure id="breakers">`} {
		next := strings.Index(text, part)
		if next <= at {
			t.Errorf("%s is at %d, after %d", part, next, at)
		}
		at = next
	}
}

// Figures have three digits at most.
func TestDigits(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  scenario.Unit
		want  string
	}{
		{.9264, scenario.Seconds, "0.93 s"},
		{.008929, scenario.Ratio, "0.89 %"},
		{.009, scenario.Ratio, "0.9 %"},
		{0, scenario.Seconds, "0 s"},
		{12.345, scenario.Seconds, "12.3 s"},
		{123.45, scenario.Seconds, "123 s"},
		{.02, scenario.Seconds, "20 ms"},
		{.0004024, scenario.Seconds, "0.4 ms"},
		{.0000012, scenario.Seconds, "1.2 µs"},
		{.0995, scenario.Seconds, "0.1 s"},
		{9.996, scenario.Seconds, "10 s"},
		{99.96, scenario.Seconds, "100 s"},
		{999.6, scenario.Count, "1\u00a0000"},
		{7531, scenario.Count, "7\u00a0530"},
		{1234567, scenario.Count, "1\u00a0230\u00a0000"},
		{57.93, scenario.PerSec, "57.9/s"},
		{.00001, scenario.Ratio, "< 0.01 %"},
		{-1, scenario.Ratio, "unknown"},
		{math.NaN(), scenario.Count, "unknown"},
	} {
		if got := picture.Text(c.value, c.unit); got != c.want {
			t.Errorf("%v is %q, want %q", c.value, got, c.want)
		}
	}
}

// A reader who does not see a chart hears its title and what it shows.
func TestChartsAreTold(t *testing.T) {
	_, page := draw(t, report())
	for _, p := range page.all("svg", "plot") {
		title, desc := p.all("title", "")[0], p.all("desc", "")[0]
		if p.attr["role"] != "img" || p.attr["aria-labelledby"] != title.attr["id"]+" "+desc.attr["id"] ||
			len(title.words()) < 10 || len(desc.words()) < 30 {
			t.Errorf("%v: %q, %q", p.attr, title.words(), desc.words())
		}
	}
}

// Whatever a report says stays text.
func TestEscapes(t *testing.T) {
	const evil = `"><script>alert(1)</script></title></style><img src=x onerror=alert(1)>&'{{`
	r := report()
	r.Scenario.Name, r.Scenario.Learn, r.Scenario.Limits[0].Name, r.Scenario.Fleet.Mode = evil, evil, evil, evil
	r.Unseed, r.Version, r.FailModes = evil, evil, map[string]string{evil: evil}
	r.Phases[0].Name, r.Sometimes[0].Name = evil, evil
	for i := range r.Expectations {
		r.Expectations[i].Text = evil
	}
	r.Faults[0].Text = "at 1s " + strings.ReplaceAll(evil, " ", "")
	_, page := draw(t, r)
	for _, n := range page.all("", "") {
		if n.name == "script" || n.name == "img" || n.attr["src"] != "" || n.attr["onerror"] != "" {
			t.Errorf("there is a <%s %v>", n.name, n.attr)
		}
	}
	if shown := strings.Count(page.words(), "<script>alert(1)</script>"); shown < 10 {
		t.Errorf("the attack is shown %d times: what was tested?", shown)
	}
}

// Tiles have the figures of the report, and the sentence of a chart has that of the tile. Once the
// tile said 145/s, and the chart 149/s, because it was of the whole run.
func TestTiles(t *testing.T) {
	_, page := draw(t, report())
	var got []string
	for _, n := range page.all("dl", "tiles")[0].all("dd", "big") {
		got = append(got, n.words())
	}
	if want := "271 2.72 % 273 20 ms 145/s 1.23 s 0.99 s unknown"; strings.Join(got, " ") != want {
		t.Errorf("tiles %q, want %q", got, want)
	}
	for id, want := range map[string]string{
		"calls":     "From 5s on 145/s on average, and at most 145/s.",
		"rates":     "From 5s on 1 500/s were offered on average, and 1 010/s admitted. At most 900/s were admitted without Redis.",
		"decisions": "From 5s on at most 20 ms, and 99 of 100 at most 0.4 ms.",
		"breakers": "A process whose breaker is open does not ask Redis. " +
			"At one time it is open in at most 100 % of the processes.",
	} {
		if got := page.all("figure", id)[0].all("desc", "")[0].words(); got != want {
			t.Errorf("%s says %q, want %q", id, got, want)
		}
	}
	calm := report()
	calm.Faults = nil
	if _, page := draw(t, calm); len(page.all("dd", "big")) != 5 {
		t.Error("without a fault there are tiles about faults")
	}
}

// The limit of a bucket is within the plot, and what is left of a window is at its upper edge while
// it is more than the plot shows. Without it there is no line.
func TestLimit(t *testing.T) {
	_, page := draw(t, report())
	line := page.all("figure", "rates")[0].all("path", "limit")
	if len(line) != 2 || line[0].attr["d"] != "M0 333H1000" { // the other is of the legend
		t.Fatalf("limit %v", line)
	}
	r := report()
	r.Series.Offered = slices.Repeat([]float64{500}, 600)
	r.Series.Admitted, r.Series.Alone = r.Series.Offered, nil
	if _, page = draw(t, r); page.all("path", "limit")[0].attr["d"] != "M0 0H1000" {
		t.Errorf("a limit of twice what is offered: %v", page.all("path", "limit")[0])
	}
	r.Scenario.Limits[0] = scenario.Limit{Name: "api", Limit: tiered.PerDay(1e6).In("UTC"), Algorithm: "fixed window"}
	for i := range 600 {
		r.Series.Limit[i] = 1e6
		if i >= 300 && i < 450 {
			r.Series.Limit[i] = 0
		}
	}
	if _, page = draw(t, r); page.all("path", "limit")[0].attr["d"] != "M0 0H500V1000H750V0H1000" {
		t.Errorf("a window that ends: %v", page.all("path", "limit")[0])
	}
	if words := page.words("style"); !strings.Contains(words, "limit api: 1000000/day in UTC, fixed window") ||
		!strings.Contains(words, "limit: what is left of the window") {
		t.Errorf("the page says %s", words)
	}
	r.Series.Limit = nil
	if _, page := draw(t, r); len(page.all("path", "limit")) > 0 {
		t.Error("there is a line for a limit that is not known")
	}
}

// −1 is unknown in words, and a gap in a line.
func TestUnknown(t *testing.T) {
	r := report()
	for i := range 300 {
		r.Series.Offered[i], r.Series.MaxUs[599-i] = -1, -1
	}
	_, page := draw(t, r)
	if words := page.words("style", "code", "pre"); strings.Contains(words, "-1") || strings.Contains(words, "−1") {
		t.Error("the page says −1")
	}
	if got := page.all("tbody", "")[0].children[1].words(); got != "✗ broken heal <= 2s Redis in use again after unknown" {
		t.Errorf("the first outcome is %q", got)
	}
	if got := page.all("tbody", "")[1].words(); !strings.Contains(got, "during faults, 30s to 45s unknown 0 %") {
		t.Errorf("the parts are %q", got)
	}
	if got := page.all("path", "offered")[0].attr["d"]; got != "M500 0H1000" {
		t.Errorf("offered is drawn as %q", got)
	}
	if got := page.all("path", "decisions")[0].attr["d"]; got != "M0 1000V133H500V1000" {
		t.Errorf("decisions are drawn as %q", got)
	}
}

// A reader need not know our metrics: their names are only where the scenario has them.
func TestWords(t *testing.T) {
	r := report()
	r.Expectations = nil
	for _, f := range picture.Figures {
		r.Expectations = append(r.Expectations, measure.Outcome{Text: f.Metric + " <= 1"})
		if f.Name == "" || strings.Contains(f.Name, "_") {
			t.Errorf("%s is called %q", f.Metric, f.Name)
		}
	}
	_, page := draw(t, r)
	ours := regexp.MustCompile(`(?i)\b(alone|ideal|utilisation|shortfall|\w+_\w+|jain|p99)\b`)
	if found := ours.FindAllString(page.words("style", "code", "pre"), -1); found != nil {
		t.Errorf("the page says %q", found)
	}
}

// Faults are shaded where they were in each chart, and named in the first: no name lies on another,
// on a phone neither.
func TestFaults(t *testing.T) {
	r := report()
	for i, kind := range strings.Fields("flush blackhole latency failover scriptflush crash") {
		r.Faults = append(r.Faults, measure.FaultSpan{Text: "at 31s " + kind, FromS: 45 + float64(2*i), ToS: 59})
	}
	_, page := draw(t, r)
	for _, plot := range page.all("svg", "plot") {
		shades := plot.all("rect", "shade")
		if len(shades) != 7 || shades[0].attr["x"] != "50%" || shades[0].attr["width"] != "25%" {
			t.Errorf("%d shades, the first %v", len(shades), shades[0].attr)
		}
	}
	free := map[string]float64{} // of a lane, from which pixel on
	names := page.all("figure", "rates")[0].all("text", "fault")
	for _, n := range names {
		from, err := strconv.ParseFloat(strings.TrimSuffix(n.attr["x"], "%"), 64)
		from, wide := from/100*270, 7.3*float64(len(n.words())) // of a narrow phone
		if n.attr["text-anchor"] == "end" {
			from -= wide
		}
		if err != nil || from < free[n.attr["y"]] {
			t.Errorf("%s lies on another name", n.words())
		}
		free[n.attr["y"]] = from + wide
	}
	if len(names) != 7 || len(page.all("figure", "calls")[0].all("text", "fault")) > 0 {
		t.Errorf("%d names", len(names))
	}
}

// A page is small.
func TestSize(t *testing.T) {
	r := report()
	for i := range 600 {
		r.Series.Offered[i], r.Series.Calls[i], r.Series.Open[i] = float64(i*i%977), float64(i*i%499), float64(i*i%7)/7
	}
	if text, _ := draw(t, r); len(text) > 32_000 {
		t.Errorf("%d bytes", len(text))
	}
}

// Any report is drawn, with little in it or with nonsense.
func TestAnyReport(t *testing.T) {
	endless := measure.Series{StepS: math.MaxFloat64, Offered: []float64{1, 2}}
	for _, r := range []*measure.Report{{Faults: report().Faults}, {Series: endless}, {}} {
		if _, page := draw(t, r); !strings.Contains(page.words(), "has no series") {
			t.Errorf("the page of %v does not say that there is no series", r.Series)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.OneOf(rapid.Float64Range(-math.MaxFloat64, math.MaxFloat64), rapid.Float64Range(-1, 1e4))
		series := func(name string) []float64 { return rapid.SliceOfN(number, 0, 700).Draw(t, name) }
		r := report()
		r.Series = measure.Series{
			StepS: rapid.Float64Range(1e-6, 1e6).Draw(t, "step"), Offered: series("offered"), Admitted: series("admitted"),
			Alone: series("alone"), Calls: series("calls"), MaxUs: series("longest"), Open: series("open"),
		}
		r.Faults[0].FromS, r.Faults[0].ToS = number.Draw(t, "from"), number.Draw(t, "to")
		r.Faults[0].Text = rapid.StringMatching("[ -~]*").Draw(t, "fault")
		_, page := draw(t, r)
		outside := regexp.MustCompile(`-|\d{5}|NaN|Inf`)
		for _, n := range slices.Concat(page.all("path", ""), page.all("rect", ""), page.all("line", "")) {
			if p := n.attr["d"] + n.attr["x"] + " " + n.attr["width"] + " " + n.attr["y1"]; outside.MatchString(p) {
				t.Fatalf("%s is outside of the plot", p)
			}
		}
	})
}

// What runs at the same time has a chart with the places, and the first figures, if there are
// places.
func TestRunning(t *testing.T) {
	r := report()
	if _, page := draw(t, r); len(page.all("figure", "running")) > 0 || strings.Contains(page.words(), "Ran at the same time") {
		t.Error("the page is about places, and there are none")
	}
	r.Scenario.AtOnce.Places, r.AtOnceFailMode = 20, "closed"
	r.Metrics.AtOnce, r.Metrics.Full = 18, 0.25
	for i := range 600 {
		r.Series.Running = append(r.Series.Running, float64(i%19))
	}
	_, page := draw(t, r)
	figure := page.all("figure", "running")[0]
	if got, want := figure.all("desc", "")[0].words(), "From 5s on at most 18 ran on 20 places, and 25 % of the requests found none."; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if line := figure.all("path", "limit"); len(line) == 0 || line[0].attr["d"] != "M0 0H1000" {
		t.Errorf("the places are drawn as %v", line)
	}
	tiles := page.all("dl", "tiles")[0].all("dd", "big")
	if tiles[0].words() != "18" || tiles[1].words() != "25 %" {
		t.Errorf("the first figures are %q and %q", tiles[0].words(), tiles[1].words())
	}
	if !strings.Contains(page.words(), "20 places of each key, fail-closed: ") {
		t.Error("the places are not among what was run")
	}
}
