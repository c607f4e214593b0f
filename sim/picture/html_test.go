package picture_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"errors"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
	"github.com/tiered-limiter/tiered-limiter/sim/picture/internal/rehearsal"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func draw(t rapid.TB, r *measure.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := picture.HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func drawSweep(t rapid.TB, s *measure.Sweep) string {
	t.Helper()
	var b bytes.Buffer
	if err := picture.SweepHTML(&b, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// parse reads a page as a browser does.
func parse(t rapid.TB, page string) *html.Node {
	t.Helper()
	n, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// find returns the elements of a kind, and of a class when one is given.
func find(n *html.Node, kind, class string) (list []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == kind && (class == "" || slices.Contains(strings.Fields(attribute(d, "class")), class)) {
			list = append(list, d)
		}
	}
	return list
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// text is what a reader sees of an element.
func text(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return strings.Join(strings.FieldsFunc(b.String(), func(c rune) bool { return c == ' ' || c == '\n' }), " ")
}

// outline is the structure of a page: its headings, and of each chart its shapes and names.
func outline(t *testing.T, page string) string {
	var b strings.Builder
	for n := range parse(t, page).Descendants() {
		switch {
		case n.Type != html.ElementNode:
		case n.Data == "h1", n.Data == "h2":
			b.WriteString(n.Data + " " + text(n) + "\n")
		case n.Data == "figure":
			b.WriteString("figure " + attribute(n, "id") + ": " + text(find(n, "h3", "")[0]) + "\n")
			for _, s := range find(n, "svg", "shapes") {
				for _, p := range find(s, "path", "") {
					b.WriteString("\t" + attribute(p, "class") + "\n")
				}
			}
			for _, e := range find(n, "text", "end") {
				b.WriteString("\tnamed " + text(e) + "\n")
			}
			for _, e := range find(n, "text", "fault") {
				b.WriteString("\tfault " + text(e) + "\n")
			}
			if n := find(n, "svg", "spot"); len(n) > 0 {
				var names []string
				for _, s := range n {
					names = append(names, strings.TrimSpace(strings.TrimPrefix(attribute(s, "class"), "spot ")+" "+text(s)))
				}
				b.WriteString("\tpoints " + strings.Join(names, ", ") + "\n")
			}
			if maps := find(n, "table", "map"); len(maps) > 0 {
				b.WriteString("\tmap " + text(maps[0]) + "\n")
			}
		}
	}
	return b.String()
}

func TestOutline(t *testing.T) {
	golden(t, "run", outline(t, draw(t, rehearsal.Report(rehearsal.Usual))))
	golden(t, "sweep", outline(t, drawSweep(t, rehearsal.Sweep(3))))
}

// The same report gives the same page.
func TestSameTwice(t *testing.T) {
	page, again := draw(t, rehearsal.Report(rehearsal.Usual)), draw(t, rehearsal.Report(rehearsal.Usual))
	if page != again {
		t.Error("two pages of one report differ")
	}
	page, again = drawSweep(t, rehearsal.Sweep(3)), drawSweep(t, rehearsal.Sweep(3))
	if page != again {
		t.Error("two pages of one sweep differ")
	}
}

// flapping changes the state of every breaker in every step.
func flapping(r *measure.Report) *measure.Report {
	for i := range r.Breakers {
		r.Breakers[i].Changes = nil
		for j := range len(r.Series.Offered) {
			state := []string{"closed", "open", "probing", "gone"}[(i+j)%4]
			r.Breakers[i].Changes = append(r.Breakers[i].Changes, measure.BreakerChange{AtS: float64(j) * r.Series.StepS, State: state})
		}
	}
	return r
}

// largest has the longest series, breakers that never rest, and attacks for texts, many of each.
func largest() *measure.Report {
	r := rehearsal.Report(rehearsal.Shape{Seed: 9, Steps: 600, Processes: 100, Mode: "open", Length: 3600})
	for len(r.Faults) < 1000 {
		r.Faults = append(r.Faults, measure.FaultSpan{FromS: float64(3 * len(r.Faults)), ToS: float64(3*len(r.Faults) + 2)})
	}
	for len(r.Expectations) < 1000 {
		r.Expectations = append(r.Expectations, measure.Outcome{})
		r.Sometimes = append(r.Sometimes, measure.Happening{Count: 3})
	}
	return flapping(rehearsal.Hostile(r))
}

func TestSize(t *testing.T) {
	usual := rehearsal.Usual
	usual.Processes = 100
	hostileSweep := rehearsal.HostileSweep(rehearsal.Sweep(3))
	wideSweep := rehearsal.Sweep(3)
	wideSweep.Axes[0].Values, wideSweep.Cells = nil, nil
	for i := range 44 {
		wideSweep.Axes[0].Values = append(wideSweep.Axes[0].Values, strings.Repeat("\"", 15)+strconv.Itoa(i))
		for _, c := range rehearsal.Sweep(uint64(i)).Cells[:9] {
			c.Values["fleet.size"] = wideSweep.Axes[0].Values[i]
			wideSweep.Cells = append(wideSweep.Cells, c)
		}
	}
	for name, page := range map[string]string{
		"usual": draw(t, rehearsal.Report(usual)), "largest": draw(t, largest()),
		"sweep": drawSweep(t, rehearsal.Sweep(3)), "hostile sweep": drawSweep(t, hostileSweep), "396 cells": drawSweep(t, wideSweep),
	} {
		t.Logf("%s: %d bytes", name, len(page))
		if len(page) > picture.MaxBytes {
			t.Errorf("%s: %d bytes, want at most %d", name, len(page), picture.MaxBytes)
		}
	}
}

// Every drawing is XML as well, with each element closed, and the page has one of each id.
func TestWellFormed(t *testing.T) {
	for name, page := range map[string]string{
		"run": draw(t, rehearsal.Report(rehearsal.Usual)), "largest": draw(t, largest()), "sweep": drawSweep(t, rehearsal.Sweep(3)),
		"hostile sweep": drawSweep(t, rehearsal.HostileSweep(rehearsal.Sweep(3))), "empty": draw(t, &measure.Report{}),
	} {
		for _, d := range strings.Split(page, `<svg class="plot"`)[1:] {
			decoder := xml.NewDecoder(strings.NewReader(`<svg class="plot"` + d))
			for depth := 0; ; {
				token, err := decoder.Token()
				if err != nil {
					t.Errorf("%s: %v in %.200s", name, err, d)
					break
				}
				switch token.(type) {
				case xml.StartElement:
					depth++
				case xml.EndElement:
					depth--
				}
				if _, ended := token.(xml.EndElement); ended && depth == 0 {
					break
				}
			}
		}
		seen := map[string]bool{}
		for n := range parse(t, page).Descendants() {
			if id := attribute(n, "id"); id != "" {
				if seen[id] {
					t.Errorf("%s: id %q is there twice", name, id)
				}
				seen[id] = true
			}
		}
		for n := range parse(t, page).Descendants() {
			for _, a := range []string{"aria-labelledby", "aria-describedby"} {
				if id := attribute(n, a); id != "" && !seen[id] {
					t.Errorf("%s: %s names %q, which is not there", name, a, id)
				}
			}
		}
	}
}

// Whatever a report says, it stays text: it adds no element, no attribute and no script, and nothing that could be
// fetched.
func TestHostile(t *testing.T) {
	for name, page := range map[string]string{
		"run": draw(t, largest()), "sweep": drawSweep(t, rehearsal.HostileSweep(rehearsal.Sweep(3))),
	} {
		n := parse(t, page)
		for d := range n.Descendants() {
			for _, a := range d.Attr {
				if a.Key == "data-owned" || strings.HasPrefix(a.Key, "on") || a.Key == "href" || a.Key == "src" || a.Key == "style" || a.Key == "action" {
					t.Errorf("%s: <%s> has the attribute %s=%q", name, d.Data, a.Key, a.Val)
				}
			}
			switch d.Data {
			case "img", "iframe", "object", "link", "base", "form", "embed", "use", "image", "foreignObject", "animate", "set", "a", "i", "x":
				if d.Type == html.ElementNode {
					t.Errorf("%s: there is an element <%s>", name, d.Data)
				}
			}
		}
		if got := len(find(n, "script", "")); got > 2 {
			t.Errorf("%s: %d scripts, want ours and the data", name, got)
		}
		if got := len(find(n, "style", "")); got != 1 {
			t.Errorf("%s: %d styles, want ours", name, got)
		}
		if !strings.Contains(text(find(n, "main", "")[0]), `onerror="owned=1"`) {
			t.Errorf("%s: the attacks are not shown: nothing was tested", name)
		}
	}
}

// The page's policy lets in the style and the script that are in it, by their digests, and nothing else.
func TestPolicy(t *testing.T) {
	for _, page := range []string{draw(t, rehearsal.Report(rehearsal.Usual)), drawSweep(t, rehearsal.Sweep(3)), draw(t, &measure.Report{})} {
		n := parse(t, page)
		raw := func(e *html.Node) string {
			sum := sha256.Sum256([]byte(e.FirstChild.Data))
			return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		}
		var script *html.Node
		for _, s := range find(n, "script", "") {
			if attribute(s, "type") == "" {
				script = s
			}
		}
		want := "default-src 'none'; style-src " + raw(find(n, "style", "")[0]) + "; script-src " + raw(script) + "; base-uri 'none'; form-action 'none'"
		var got string
		for _, m := range find(n, "meta", "") {
			if attribute(m, "http-equiv") == "Content-Security-Policy" {
				got = attribute(m, "content")
			}
		}
		if got != want {
			t.Errorf("policy %s\nwant   %s", got, want)
		}
		if outside := regexp.MustCompile(`(?i)https?:|//[a-z]|@import|url\([^#]`).FindString(page); outside != "" {
			t.Errorf("the page names something outside of it: %q", outside)
		}
	}
}

// Reports with little in them are drawn as far as they go.
func TestLittle(t *testing.T) {
	for name, r := range map[string]*measure.Report{
		"nothing":     {},
		"no scenario": {Scenario: &scenario.Scenario{}},
		"no series":   {Passed: true, Expectations: []measure.Outcome{{Text: "shortfall <= 5%", Value: .01, Passed: true}}},
		"one step":    {Series: measure.Series{StepS: .1, Offered: []float64{5}}},
		"one value":   {Series: measure.Series{StepS: .1, Offered: []float64{5, 6}, Jain: []float64{1}}},
		"only zeros":  {Series: measure.Series{StepS: .1, Offered: []float64{0, 0}, MaxUs: []float64{0, 0}, Granted: []int64{0, 0}}},
		"unknown": {
			Series: measure.Series{StepS: .1, Offered: []float64{-1, math.NaN()}, Held: []int64{-1}}, Breakers: []measure.BreakerStrip{{}},
			Metrics: measure.Metrics{Jain: math.NaN(), Shortfall: math.Inf(1), RedisCalls: -1},
		},
		"faults outside": {Series: measure.Series{StepS: 1, Offered: []float64{1, 2}}, Faults: []measure.FaultSpan{{FromS: 5, ToS: 9}, {FromS: -1, ToS: -1}, {FromS: 1, ToS: -1}}},
	} {
		page := draw(t, r)
		n := parse(t, page)
		if len(find(n, "h1", "")) != 1 {
			t.Errorf("%s: no heading", name)
		}
		if strings.Contains(page, "NaN") && strings.Contains(strings.ReplaceAll(page, "isNaN", ""), "NaN") || strings.Contains(page, "Inf") && strings.Contains(text(n), "Inf") {
			t.Errorf("%s: the page says NaN or Inf", name)
		}
	}
	n := parse(t, draw(t, &measure.Report{Passed: false, Sometimes: []measure.Happening{{Name: "breaker_open", Wanted: true}}}))
	if got := text(find(n, "p", "verdict")[0]); got != "Failednothing was expected, and 1 thing that had to happen did not" {
		t.Errorf("verdict %q", got)
	}
}

// What cannot be drawn is an error that says why, and nothing is written.
func TestErrors(t *testing.T) {
	many := make([]float64, 601)
	for _, c := range []struct {
		r    *measure.Report
		want string
	}{
		{nil, "picture: the report is nil: there must be one"},
		{&measure.Report{Series: measure.Series{StepS: 1, Jain: many}}, "picture: series.jain has 601 values: there must be at most 600"},
		{&measure.Report{Series: measure.Series{StepS: 1, Held: make([]int64, 700)}}, "picture: series.held has 700 values: there must be at most 600"},
		{&measure.Report{Series: measure.Series{Offered: []float64{1}}}, "picture: series.step_s is 0: it must be above 0 and at most 1e9"},
		{&measure.Report{Series: measure.Series{StepS: math.NaN(), Offered: []float64{1}}}, "picture: series.step_s is NaN: it must be above 0 and at most 1e9"},
	} {
		var b bytes.Buffer
		if err := picture.HTML(&b, c.r); err == nil || err.Error() != c.want || b.Len() > 0 {
			t.Errorf("error %v after %d bytes, want %s", err, b.Len(), c.want)
		}
	}
	broken := errors.New("disk full")
	if err := picture.HTML(failing{broken}, &measure.Report{}); !errors.Is(err, broken) {
		t.Errorf("error %v of a writer that fails, want its own", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// The values under the pointer are those of the report, and what is not known is null.
func TestData(t *testing.T) {
	r := rehearsal.Report(rehearsal.Usual)
	r.Series.Offered[3], r.Series.Offered[4], r.Series.Calls[5] = -1, math.NaN(), math.Inf(1)
	var got struct {
		Steps  int
		Charts []struct {
			ID   string
			Data []struct {
				Name   string
				Values []*float64
			}
		}
	}
	for _, s := range find(parse(t, draw(t, r)), "script", "") {
		if attribute(s, "id") == "data" {
			if err := json.Unmarshal([]byte(s.FirstChild.Data), &got); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string][]float64{
		"rates offered": r.Series.Offered, "rates admitted": r.Series.Admitted, "rates ideal": r.Series.Ideal, "rates without Redis": r.Series.Alone,
		"calls calls": r.Series.Calls, "decisions longest": r.Series.MaxUs, "fairness Jain’s index": r.Series.Jain,
	}
	for _, c := range got.Charts {
		for _, row := range c.Data {
			if len(row.Values) != 600 {
				t.Errorf("%s %s has %d values, want 600", c.ID, row.Name, len(row.Values))
			}
			values := want[c.ID+" "+row.Name]
			delete(want, c.ID+" "+row.Name)
			for i, v := range values {
				switch {
				case math.IsNaN(v) || math.IsInf(v, 0) || v < 0:
					if row.Values[i] != nil {
						t.Errorf("%s %s[%d] is %v, want null", c.ID, row.Name, i, *row.Values[i])
					}
				case row.Values[i] == nil || math.Abs(*row.Values[i]-v) > v*.001:
					t.Errorf("%s %s[%d] is %v, want %v", c.ID, row.Name, i, row.Values[i], v)
				}
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not in the page: %v", want)
	}
}
