package picture_test

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
	"github.com/tiered-limiter/tiered-limiter/sim/picture/internal/rehearsal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

var update = flag.Bool("update", false, "write the files of testdata anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s says otherwise (go test ./sim/picture -update writes it anew): got\n%s", file, got)
	}
}

var pathWord = regexp.MustCompile(`[a-zA-Z]|-?\d+(?:\.\d+)?`)

func numbersIn(text string) (list []float64) {
	for _, w := range pathWord.FindAllString(text, -1) {
		if v, err := strconv.ParseFloat(w, 64); err == nil {
			list = append(list, v)
		}
	}
	return list
}

// corners follows an SVG path: M, m, l, h and z, as ours have.
func corners(d string) (list [][2]float64) {
	words := pathWord.FindAllString(d, -1)
	var x, y, startX, startY float64
	verb := ""
	next := func() float64 {
		v, err := strconv.ParseFloat(words[0], 64)
		if err != nil {
			panic("not a number in " + d)
		}
		words = words[1:]
		return v
	}
	for len(words) > 0 {
		if c := words[0][0]; c >= 'A' && c <= 'z' {
			verb, words = words[0], words[1:]
		}
		switch verb {
		case "M":
			x, y = next(), next()
			startX, startY = x, y
		case "m":
			x, y = x+next(), y+next()
			startX, startY = x, y
		case "l":
			x, y = x+next(), y+next()
		case "h":
			x += next()
		case "z":
			x, y = startX, startY
			continue
		default:
			panic("verb " + verb + " in " + d)
		}
		list = append(list, [2]float64{x, y})
	}
	return list
}

// changes are times and states in turn.
func changes(list ...any) (all []measure.BreakerChange) {
	for i := 0; i < len(list); i += 2 {
		at, ok := list[i].(float64)
		if !ok {
			at = float64(list[i].(int))
		}
		all = append(all, measure.BreakerChange{AtS: at, State: list[i+1].(string)})
	}
	return all
}

// shapes are the paths of a chart, by class.
func shapes(t *testing.T, page, chart string) map[string][][2]float64 {
	all := map[string][][2]float64{}
	for _, f := range find(parse(t, page), "figure", "") {
		if attribute(f, "id") != chart {
			continue
		}
		for _, s := range find(f, "svg", "shapes") {
			for _, p := range find(s, "path", "") {
				all[attribute(p, "class")] = corners(attribute(p, "d"))
			}
		}
	}
	return all
}

// A line goes through the middle of each step, at the height of its value: two units across per step, ten per pixel.
func TestLineIsWhereTheValuesAre(t *testing.T) {
	r := &measure.Report{Series: measure.Series{StepS: 1, Admitted: []float64{0, 50, 100, -1, 100, math.NaN(), 25}}}
	got := shapes(t, draw(t, r), "rates")["line admitted"]
	want := [][2]float64{{0, 2600}, {1, 2600}, {3, 1300}, {5, 0}, {6, 0}, {8, 0}, {10, 0}, {12, 1950}, {14, 1950}}
	if len(got) != len(want) {
		t.Fatalf("corners %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("corner %d is %v, want %v", i, got[i], want[i])
		}
	}
}

// The layers of the ledger lie on each other and end at what was granted.
func TestLedgerStacks(t *testing.T) {
	r := &measure.Report{Series: measure.Series{
		StepS: 1, Granted: []int64{100, 200, 400}, Spent: []int64{50, 100, 200}, Held: []int64{25, 50, 0}, Returned: []int64{0, 0, 100}, Burnt: []int64{0, 30, 60},
	}}
	layers := shapes(t, draw(t, r), "ledger")
	// 180 pixels for 400 tokens, 4.5 units per token. Each layer at the end of the last step, from and to.
	for class, want := range map[string][2]float64{"spent": {0, 200}, "returned": {200, 300}, "burnt": {300, 360}, "lost": {360, 400}} {
		from, to := 0.0, math.Inf(1)
		for _, c := range layers["area "+class] {
			if c[0] == 6 {
				from, to = max(from, c[1]), min(to, c[1])
			}
		}
		if from != 1800-4.5*want[0] || to != 1800-4.5*want[1] {
			t.Errorf("%s reaches from %v to %v, want %v of 400 tokens", class, from, to, want)
		}
	}
}

// A breaker's bar is where and as thick as its state was.
func TestStrip(t *testing.T) {
	r := &measure.Report{
		Series: measure.Series{StepS: .5, Offered: make([]float64, 20)},
		Breakers: []measure.BreakerStrip{
			{Process: "a", Changes: changes(0, "closed", 2, "open", 4, "probing", 5, "closed")},
			{Process: "b", Changes: changes(3, "closed", 8, "gone")},
		},
	}
	got := shapes(t, draw(t, r), "breakers")
	want := map[string][][2]float64{
		// two processes: rows of 20 pixels; two units a step, steps of half a second
		"bar open": {{8, 10}, {16, 10}}, "bar probing": {{16, 10}, {20, 10}},
		"bar closed": {{0, 10}, {8, 10}, {20, 10}, {40, 10}, {12, 30}, {32, 30}},
	}
	for class, corners := range want {
		if len(got[class]) != len(corners) {
			t.Errorf("%s is at %v, want %v", class, got[class], corners)
			continue
		}
		for i := range corners {
			if got[class][i] != corners[i] {
				t.Errorf("%s is at %v, want %v", class, got[class], corners)
				break
			}
		}
	}
}

// A state shorter than a step is seen all the same, the more remarkable one before the others.
func TestShortStateIsSeen(t *testing.T) {
	r := &measure.Report{
		Series:   measure.Series{StepS: 1, Offered: make([]float64, 10)},
		Breakers: []measure.BreakerStrip{{Changes: changes(0, "closed", 4.2, "open", 4.3, "probing", 4.4, "closed")}},
	}
	if got := shapes(t, draw(t, r), "breakers")["bar open"]; len(got) != 2 || got[0][0] != 8 || got[1][0] != 10 {
		t.Errorf("open is drawn at %v, want in the step from 4 s to 5 s", got)
	}
}

// Faults are shaded where they were, in every chart, and named in the first; names do not lie on each other.
func TestFaults(t *testing.T) {
	r := rehearsal.Report(rehearsal.Usual)
	r.Faults = []measure.FaultSpan{{Text: "flush", FromS: 15, ToS: 15}, {Text: "blackhole", FromS: 30, ToS: 45}, {Text: "latency delay=20ms jitter=5ms procs=30%", FromS: 31, ToS: 40}, {Text: "late", FromS: 59, ToS: 70}}
	page := parse(t, draw(t, r))
	plots := find(page, "svg", "plot")
	if len(plots) != 7 {
		t.Fatalf("%d plots, want 7", len(plots))
	}
	for i, p := range plots {
		bands := find(p, "rect", "band")
		if len(bands) != 3 || attribute(bands[0], "x") != "50%" || attribute(bands[0], "width") != "25%" {
			t.Errorf("plot %d: %d bands, the first at %s", i, len(bands), attribute(bands[0], "x"))
		}
		if moments := find(p, "line", "moment"); len(moments) != 1 || attribute(moments[0], "x1") != "25%" {
			t.Errorf("plot %d: %d moments", i, len(moments))
		}
		if names := find(p, "text", "fault"); (i == 0) != (len(names) == 4) {
			t.Errorf("plot %d names %d faults", i, len(names))
		}
	}
	names := find(plots[0], "text", "fault")
	if attribute(names[1], "y") == attribute(names[2], "y") {
		t.Error("two faults that begin at almost one time are named on one line")
	}
	if attribute(names[3], "text-anchor") != "end" {
		t.Error("the name of a fault at the end does not end there")
	}
	if got := text(find(page, "ol", "faults")[0]); !strings.Contains(got, "1 flush at 15\u202fs") || !strings.Contains(got, "2 blackhole 30\u202fs – 45\u202fs") {
		t.Errorf("the list of faults says %q", got)
	}
}

// Every metric of the scenario language has a value, the one that is meant.
func TestEveryMetricIsShown(t *testing.T) {
	m := measure.Metrics{
		OverAdmission: 1001, Shortfall: .1002, DeniedWithin: .1003, Utilisation: .1004, DecideP50: 105, DecideP99: 106, DecideP999: 132, DecideMax: 107, Waited: .108,
		RedisCalls: 109, CallsPerToken: .11, Lost: 111, Burnt: 112, Duplicated: 113, Alone: 114, Uncounted: 115, Detect: 116, Heal: 117, Recovered: 118,
		Open: .119, BreakerChanges: 120, Probes: 121, Jain: .122, Keys: 123, LeastProcess: .127, JainKeys: .128, LeastKey: .129, StarvedProcess: 130, StarvedKey: 131, Offered: 124, Admitted: 125, Ideal: 126,
	}
	want := map[string]string{
		"over_admission": "1001", "shortfall": "10 %", "denied_within": "10 %", "utilisation": "10 %", "decide_p50": "105 µs", "decide_p99": "106 µs", "decide_p999": "132 µs",
		"decide_max": "107 µs", "waited": "10.8 %", "redis_calls": "109/s", "calls_per_token": "0.11", "lost": "111", "burnt": "112", "duplicated": "113",
		"alone": "114", "uncounted": "115", "detect": "116 ms", "heal": "117 ms", "recovered": "118 ms", "open": "11.9 %", "breaker_changes": "120",
		"probes": "121", "jain": "0.122", "least_process": "12.7 %", "jain_keys": "0.128", "least_key": "12.9 %", "starved_process": "130 ms", "starved_key": "131 ms", "keys": "123", "offered": "124", "admitted": "125", "ideal": "126",
	}
	for _, metric := range scenario.Metrics {
		if _, ok := want[metric.Name]; !ok {
			t.Errorf("metric %s is new: give it a value here, and in picture", metric.Name)
		}
	}
	for _, row := range find(find(parse(t, draw(t, &measure.Report{Metrics: m})), "table", "figures")[0], "tr", "")[1:] {
		name := text(find(row, "code", "")[0])
		got := strings.ReplaceAll(text(find(row, "td", "")[0]), "\u202f", " ")
		if got != want[name] {
			t.Errorf("%s is shown as %q, want %q", name, got, want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not shown: %v", want)
	}
}

func sweepOf(points ...[3]float64) *measure.Sweep { // Redis calls, over-admission, 1 if it kept its expectations
	s := &measure.Sweep{Axes: []scenario.Axis{{Path: "fleet.size"}}}
	for i, p := range points {
		v := strconv.Itoa(i)
		s.Axes[0].Values = append(s.Axes[0].Values, v)
		s.Cells = append(s.Cells, measure.Cell{
			Values: map[string]string{"fleet.size": v}, Passed: p[2] == 1, Metrics: measure.Metrics{RedisCalls: p[0], OverAdmission: p[1], Shortfall: -1},
		})
	}
	return s
}

// The choices are the cells that no other beats, of those that keep their expectations, and the advised one.
func TestFront(t *testing.T) {
	s := sweepOf([3]float64{100, 50, 1}, [3]float64{200, 60, 1}, [3]float64{300, 10, 1}, [3]float64{400, 10, 1}, [3]float64{50, 5, 0}, [3]float64{-1, 0, 1})
	for _, c := range []struct {
		advised string
		want    []string
	}{{"", []string{"0", "2"}}, {"1", []string{"0", "1", "2"}}, {"4", []string{"4", "0", "2"}}} {
		s.Advised = nil
		if c.advised != "" {
			s.Advised = map[string]string{"fleet.size": c.advised}
		}
		var got []string
		for _, row := range find(find(parse(t, drawSweep(t, s)), "table", "choices")[0], "tr", "")[1:] {
			v := text(find(row, "code", "")[0])
			got = append(got, v)
			if strings.Contains(text(row), "advised") != (v == c.advised) {
				t.Errorf("advised %q: row %q", c.advised, text(row))
			}
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("with %q advised the choices are %q, want %q", c.advised, got, c.want)
		}
	}
	// What is less than a tenth of a token is the rounding of sums: it beats nobody.
	s.Cells[3].Metrics.OverAdmission -= 1e-6
	s.Advised = nil
	if got := len(find(find(parse(t, drawSweep(t, s)), "table", "choices")[0], "tr", "")) - 1; got != 2 {
		t.Errorf("%d choices, want 2: a millionth of a token counts", got)
	}
	for i := range s.Cells {
		s.Cells[i].Passed = false
	}
	s.Advised = nil
	page := parse(t, drawSweep(t, s))
	if got := text(find(find(page, "table", "choices")[0], "code", "")[0]); got != "4" {
		t.Errorf("when none keeps its expectations the best is %q, want 4", got)
	}
	if n := len(find(page, "figure", "scatter")); n != 1 {
		t.Errorf("%d plots, want 1: no cell knows its shortfall", n)
	}
}

// A heat map has a cell per combination, the more the stronger, and its value in it; a combination that is missing
// is empty.
func TestHeat(t *testing.T) {
	s := rehearsal.Sweep(3)
	page := parse(t, drawSweep(t, s))
	maps := find(page, "table", "map")
	if len(maps) != 9 {
		t.Fatalf("%d maps, want 3 metrics × 3 periods", len(maps))
	}
	// over_admission, 100ms: rows are sizes, columns local, closed, open
	row := find(find(maps[0], "tbody", "")[0], "tr", "")[0]
	cells := find(row, "td", "")
	if attribute(cells[1], "class") != "h0" || attribute(cells[2], "class") != "h5" || !strings.HasPrefix(text(cells[1]), "0") || !strings.Contains(text(cells[2]), "✗") {
		t.Errorf("the first row is %q, classes %q and %q", text(row), attribute(cells[1], "class"), attribute(cells[2], "class"))
	}
	s.Cells = s.Cells[1:]
	cell := find(find(find(parse(t, drawSweep(t, s)), "table", "map")[0], "tbody", "")[0], "td", "")[0]
	if attribute(cell, "class") != "none" || text(cell) != "—" {
		t.Errorf("a combination that was not run is shown as %q", text(cell))
	}
}

func TestSweepErrors(t *testing.T) {
	axis := []scenario.Axis{{Path: "fleet.size", Values: []string{"5"}}}
	cell := measure.Cell{Values: map[string]string{"fleet.size": "5"}}
	for _, c := range []struct {
		s    *measure.Sweep
		want string
	}{
		{nil, "picture: the sweep is nil: there must be one"},
		{&measure.Sweep{}, "picture: axes has no entry: a sweep has at least one"},
		{&measure.Sweep{Axes: axis}, "picture: cells has no entry: a sweep has at least one"},
		{&measure.Sweep{Axes: axis, Cells: make([]measure.Cell, 401)}, "picture: cells has 401 entries: there must be at most 400"},
		{&measure.Sweep{Axes: append(axis[:1:1], axis[0]), Cells: []measure.Cell{cell}}, `picture: axes[1].path is "fleet.size": an axis is there once`},
		{&measure.Sweep{Axes: []scenario.Axis{{Path: "net.rtt"}}, Cells: []measure.Cell{cell}}, "picture: axes[0].values has 0 entries: there must be 1 to 400"},
		{&measure.Sweep{Axes: axis, Cells: []measure.Cell{{Values: map[string]string{"fleet.size": "6"}}}}, `picture: cells[0].values["fleet.size"] is "6": it must be one of the axis`},
		{&measure.Sweep{Axes: axis, Cells: []measure.Cell{{}}}, `picture: cells[0].values["fleet.size"] is "": it must be one of the axis`},
	} {
		var b bytes.Buffer
		if err := picture.SweepHTML(&b, c.s); err == nil || err.Error() != c.want || b.Len() > 0 {
			t.Errorf("error %v after %d bytes, want %s", err, b.Len(), c.want)
		}
	}
}
