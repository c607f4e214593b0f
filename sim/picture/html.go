package picture

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// MaxBytes bounds the size of every page.
const MaxBytes = 300 * 1024

const (
	maxSteps    = 600       // of a series
	maxCells    = 400       // of a sweep
	maxTips     = 100       // cells of a sweep that has a tip for each
	maxText     = 120       // characters of a text that is one line
	maxOutcomes = 40        // expectations
	maxListed   = 40        // faults in the list
	maxScenario = 24 * 1024 // bytes of the scenario's text, when each is written as it is
)

//go:embed page.tmpl
var pageText string

//go:embed style.css
var styleText string

//go:embed script.js
var scriptText string

var pages = template.Must(template.New("").Parse(pageText))

// frame is what every page has.
type frame struct {
	Policy string // Content-Security-Policy: our style and our script, and nothing else
	Style  template.CSS
	Script template.JS
	Title  string
	Learn  string
	Facts  []string
	Data   any
	Replay replay
}

// newFrame returns the frame of a page about s, which may be nil.
func newFrame(s *scenario.Scenario, kind string) frame {
	f := frame{Style: template.CSS(styleText), Script: template.JS(scriptText), Title: "A rehearsal without a name"}
	f.Policy = "default-src 'none'; style-src '" + digest(styleText) + "'; script-src '" + digest(scriptText) +
		"'; base-uri 'none'; form-action 'none'"
	if s != nil {
		if s.Name != "" {
			f.Title = clip(s.Name, maxText)
		}
		f.Learn = clip(s.Learn, 2*maxText)
	}
	f.Replay.Kind = kind
	f.Replay.Text, f.Replay.Left = scenarioText(s)
	return f
}

// digest names a text in a Content-Security-Policy.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// replay says how to see the same again.
type replay struct {
	Kind           string // run, sweep
	Text           string // of the scenario
	Left           int    // bytes of it that are not shown
	Engine, Unseed string
	Seed           uint64
	Version        string
}

// scenarioText is s in its own language, and how many bytes of that are left out.
func scenarioText(s *scenario.Scenario) (text string, left int) {
	if s == nil {
		return "", 0
	}
	text = clean(s.String())
	// As HTML a quote takes five bytes: those count as well, or a page of quotes would be too long.
	size := 0
	for i, c := range text {
		size++
		if strings.ContainsRune(`<>&"'+`, c) {
			size += 4
		}
		if size > maxScenario {
			return text[:i], len(text) - i
		}
	}
	return text, 0
}

// runPage is the page of one run.
type runPage struct {
	frame
	Passed   bool
	Verdict  string
	Tiles    []tile
	Outcomes []outcome
	Never    []string // what had to happen and did not
	Happened []happening
	Charts   []chart
	Faults   []listedFault
	More     int // faults that are not listed
	Figures  table
}

type outcome struct {
	Text, Value string
	Passed      bool
}

type happening struct {
	Name, Count   string
	Wanted, Never bool
}

type listedFault struct {
	Number     int
	Text, When string
}

// HTML writes the page of a report. A report whose series are too long, or whose steps have no length, is an error, and
// nothing is written.
func HTML(w io.Writer, r *measure.Report) error {
	if r == nil {
		return errors.New("picture: the report is nil: there must be one")
	}
	steps, err := seriesSteps(&r.Series)
	if err != nil {
		return err
	}
	p := runPage{frame: newFrame(r.Scenario, "run"), Passed: r.Passed, Tiles: tiles(&r.Metrics), Figures: figures(r)}
	p.Replay.Engine, p.Replay.Unseed, p.Replay.Seed, p.Replay.Version = clip(r.Engine, 40), clip(r.Unseed, 40),
		r.Seed, clip(r.Version, maxText)
	p.Facts = facts(r.Scenario, r.FailModes, r.Engine)
	p.Facts = append(p.Facts, fmt.Sprintf("seed %d", r.Seed))
	p.addOutcomes(r)

	var spans []span
	for i, f := range r.Faults {
		text := f.Text
		if rest, ok := strings.CutPrefix(text, "at "); ok {
			_, text, _ = strings.Cut(rest, " ") // the picture says when it was
		}
		spans = append(spans, span{i + 1, text, f.FromS, f.ToS})
		if i < maxListed {
			p.Faults = append(p.Faults, listedFault{i + 1, clip(text, maxText), when(f.FromS, f.ToS)})
		}
	}
	p.More = len(r.Faults) - len(p.Faults)
	if steps > 0 {
		d := run{Report: r, timeline: timeline{steps: steps, step: r.Series.StepS}}
		d.bands, d.lanes = newBands(spans, d.total())
		d.hover.Step, d.hover.Steps = d.step, d.steps
		p.Charts = d.charts()
		p.Data = d.hover
	}
	return write(w, "run", p)
}

// seriesSteps is the number of steps of a series.
func seriesSteps(s *measure.Series) (steps int, err error) {
	v := reflect.ValueOf(*s)
	for i := range v.NumField() {
		if v.Field(i).Kind() != reflect.Slice {
			continue
		}
		n := v.Field(i).Len()
		if steps = max(steps, n); n > maxSteps {
			name := v.Type().Field(i).Tag.Get("json")
			return 0, fmt.Errorf("picture: series.%s has %d values: there must be at most %d", name, n, maxSteps)
		}
	}
	if steps > 0 && !(s.StepS > 0 && s.StepS <= 1e9) {
		return 0, fmt.Errorf("picture: series.step_s is %v: it must be above 0 and at most 1e9", s.StepS)
	}
	return steps, nil
}

// addOutcomes adds the expectations, what happened, and the verdict.
func (p *runPage) addOutcomes(r *measure.Report) {
	broken := 0
	for i, o := range r.Expectations {
		if !o.Passed && !o.Unseen {
			broken++
		}
		if i < maxOutcomes && !o.Unseen {
			p.Outcomes = append(p.Outcomes, outcome{clip(o.Text, maxText), written(bounded(o.Text), o.Value), o.Passed})
		}
	}
	// The broken ones first: they are what one looks for.
	slices.SortStableFunc(p.Outcomes, func(a, b outcome) int {
		if a.Passed == b.Passed {
			return 0
		} else if b.Passed {
			return -1
		}
		return 1
	})
	for _, h := range r.Sometimes[:min(len(r.Sometimes), maxOutcomes)] {
		if h.Wanted && h.Count == 0 && !h.Unseen {
			p.Never = append(p.Never, clip(h.Name, maxText))
		}
		if h.Wanted || h.Count > 0 {
			p.Happened = append(p.Happened, happening{
				clip(h.Name, maxText), amount(float64(h.Count)), h.Wanted,
				h.Count == 0 && !h.Unseen,
			})
		}
	}
	n := len(r.Expectations)
	switch {
	case broken > 0:
		p.Verdict = amount(float64(broken)) + " of " + plural(n, "expectation", "expectations") + " broken"
	case n > 1:
		p.Verdict = "all " + plural(n, "", "expectations") + " kept"
	case n == 1:
		p.Verdict = "the expectation kept"
	default:
		p.Verdict = "nothing was expected"
	}
	if a := &r.Audit; a.Broken > 0 {
		p.Outcomes = slices.Insert(p.Outcomes, 0, outcome{clip("audit: "+a.First, maxText), "broken at " +
			amount(float64(a.Broken)) + " looks", false})
		p.Verdict += ", and the audit found a mistake"
	}
	if len(p.Never) > 0 {
		p.Verdict += ", and " + plural(len(p.Never), "thing", "things") + " that had to happen did not"
	}
}

// facts are what the run was about, in a few words each.
func facts(s *scenario.Scenario, own map[string]string, engine string) (list []string) {
	if engine != "" {
		list = append(list, clip(engine, 40)+" engine")
	}
	if s == nil {
		return list
	}
	if s.Fleet.N > 0 {
		list = append(list, plural(s.Fleet.N, "process", "processes"))
	}
	mode := s.Fleet.Mode
	if mode == "" {
		mode = "local"
	}
	list = append(list, "fail-"+clip(mode, 20))
	for _, name := range slices.Sorted(maps.Keys(own)) {
		list = append(list, clip(name, 40)+" fail-"+clip(own[name], 20))
	}
	if len(s.Limits) == 1 && s.Limits[0].Per > 0 {
		l := s.Limits[0]
		list = append(list, amount(float64(l.Tokens))+" tokens per "+per(float64(l.Per)/1e9))
	} else if len(s.Limits) > 1 {
		list = append(list, plural(len(s.Limits), "limit", "limits"))
	}
	if s.Length > 0 {
		list = append(list, length(float64(s.Length)/1e9))
	}
	return list
}

// per is a period in seconds, as one says it after "per".
func per(s float64) string {
	switch s {
	case 1:
		return "second"
	case 60:
		return "minute"
	case 3600:
		return "hour"
	}
	return length(s)
}

// when is a time from and to, in words.
func when(from, to float64) string {
	switch {
	case !known(from):
		return "never"
	case !known(to):
		return "from " + length(from)
	case to <= from:
		return "at " + length(from)
	}
	return length(from) + " – " + length(to)
}

// write renders a page and writes it, when it is whole and small enough.
func write(w io.Writer, name string, data any) error {
	var b bytes.Buffer
	if err := pages.ExecuteTemplate(&b, name, data); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	if b.Len() > MaxBytes {
		return fmt.Errorf("picture: the page would be %d bytes long: at most %d are allowed", b.Len(), MaxBytes)
	}
	_, err := w.Write(b.Bytes())
	return err
}
