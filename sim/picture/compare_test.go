package picture_test

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture"
)

// modes are a run in each fail mode. In the last one more is offered.
func modes() (all []*measure.Report) {
	for i, mode := range []string{"local", "open", "closed"} {
		r := report()
		r.Scenario.Fleet.Mode, r.FailModes = mode, nil
		for j := range r.Series.Offered {
			r.Series.Offered[j] += float64(1000 * (i / 2))
		}
		all = append(all, r)
	}
	return all
}

// wellFormed checks that a text is XML: each element is closed, and no id is there twice.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	seen := map[string]bool{}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if x, ok := token.(xml.StartElement); ok {
			for _, a := range x.Attr {
				if a.Name.Local == "id" && seen[a.Value] {
					t.Errorf("the id %s is there twice", a.Value)
				}
				seen[a.Value] = seen[a.Value] || a.Name.Local == "id"
			}
		}
	}
}

// Several runs are on one page, called by their fail modes, on one scale, and one column of figures
// each.
func TestCompare(t *testing.T) {
	var b strings.Builder
	fatal.If(t, picture.Compare(&b, []string{"x", "y", "z"}, modes()))
	text := b.String()
	wellFormed(t, text)
	at := -1
	for _, part := range []string{
		"<h1>a dark quarter</h1>", "<h2>fail-local</h2>", `<figure id="run1-rates">`, "<h2>fail-open</h2>", `<figure id="run2-rates">`,
		"<h2>fail-closed</h2>", "<h2>Figures</h2>", "What was expected of fail-local", "What was expected of fail-closed",
		`<figure id="run1-breakers">`, `<figure id="run3-decisions">`, "seed 7, unseed 0123456789abcdef",
	} {
		next := strings.Index(text, part)
		if next <= at {
			t.Errorf("%s is at %d, after %d", part, next, at)
		}
		at = max(at, next)
	}
	scale := regexp.MustCompile(`(?s)<figure id="run(\d)-rates">.*?text-anchor="end">([^<]*)</text>\s*<svg`)
	for _, m := range scale.FindAllStringSubmatch(text, -1) {
		if m[2] != "2\u00a0500" {
			t.Errorf("the scale of run %s ends at %q", m[1], m[2])
		}
	}
	if n := len(scale.FindAllString(text, -1)); n != 3 {
		t.Errorf("%d scales", n)
	}
	if found := regexp.MustCompile(`(?i)https?:|src=|href=|@import|url\(|<script`).FindString(text); found != "" {
		t.Errorf("the page has %q", found)
	}
	// Two of one mode are called by their names.
	same := modes()[:1]
	b.Reset()
	fatal.If(t, picture.Compare(&b, []string{"before", "after"}, append(same, modes()[0])))
	if text := b.String(); !strings.Contains(text, "<h2>before</h2>") || !strings.Contains(text, "<h2>after</h2>") {
		t.Error("the runs are not called by their names")
	}
	fatal.If(t, picture.Compare(io.Discard, nil, nil))
	fatal.If(t, picture.Compare(io.Discard, nil, []*measure.Report{{}, {}}))
}

// A drawing says in words what it shows, has colors for the dark, is small, and nothing of it is
// outside.
func TestSVG(t *testing.T) {
	var b strings.Builder
	fatal.If(t, picture.SVG(&b, nil, modes()))
	text := b.String()
	wellFormed(t, text)
	for _, part := range []string{
		`<svg xmlns="http://www.w3.org/2000/svg"`, "fail-local", "fail-open", "fail-closed", "prefers-color-scheme: dark", ">no Redis</text>",
		"271 tokens too many", ">admitted</text>", ">limit, which",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in\n%.2000s", part, text)
		}
	}
	if len(text) > 100_000 {
		t.Errorf("%d bytes", len(text))
	}
	evil := modes()
	evil[1].Scenario.Limits[0].Name, evil[1].Faults[0].Text = "<script>", "at 1s <script>alert(1)</script>"
	b.Reset()
	fatal.If(t, picture.SVG(&b, []string{"<script>"}, evil))
	if strings.Contains(b.String(), "<script") {
		t.Error("a report's text is not escaped")
	}
	if err := picture.SVG(io.Discard, nil, []*measure.Report{{}}); err == nil || !strings.Contains(err.Error(), "no series") {
		t.Errorf("%v", err)
	}
}
