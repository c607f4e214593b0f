// Package picture draws the report of a run as a web page: one file of HTML and SVG, without
// JavaScript, that needs no network. What a report says is untrusted: it reaches the page through
// html/template only, and the page forbids itself to load or run anything. What a report does not
// know (−1) is "unknown", or a gap in a line.
package picture

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

//go:embed page.tmpl
var pageText string

//go:embed compare.tmpl
var compareText string

//go:embed style.css
var styleText string

var (
	pageTemplate    = template.Must(template.New("page").Parse(pageText))
	compareTemplate = template.Must(template.Must(pageTemplate.Clone()).New("compare").Parse(compareText))
)

// page is what the template draws.
type page struct {
	Style    template.CSS
	Scenario *scenario.Scenario
	Report   *measure.Report
	Facts    []string
	Verdict  string
	From     string // the instant from which on figures count
	Tiles    []figure
	Outcomes []outcome
	Faults   []fault
	First    []chart // what the page begins with
	Rest     []chart
	Of       string // which of several runs it is, or empty
	Columns  []figure
	Whole    part
	Parts    []part // a row each
}

// figure is a metric in words.
type figure struct{ Metric, Name, What string }

// The first figures are known of each part of a run, the first eight are tiles, and the last three
// of these are about faults.
const ofParts, tiles, faultTiles = 4, 8, 3

// atOnceFigures is the first of the two of what runs at the same time.
const atOnceFigures = 11

var figures = []figure{
	{"over_admission", "Admitted too much", "tokens beyond the limit that is exceeded most, of the worst key in its worst time"},
	{"shortfall", "Admitted too little", "of what one exact limiter admits of the same requests"},
	{"alone", "Admitted without Redis", "tokens, by processes that did not reach it"},
	{"decide_max", "Longest decision", "that a caller waited for"},
	{"redis_calls", "Redis calls", "on average, of all processes together"},
	{"detect", "Fault noticed after", "by the last of the processes that it hit"},
	{"heal", "Redis in use again after", "by all processes, from the end of the fault on"},
	{"recovered", "Normal again after", "as much admitted as by one exact limiter, from the end of the last fault on"},
	{"decide_p99", "99 of 100 decisions", ""},
	{"denied_within", "Refused, though one exact limiter admits it", ""},
	{"utilisation", "Admitted, of what one exact limiter admits", ""},
	{"at_once", "Ran at the same time", "requests of one key, in all processes together, at most"},
	{"full", "Found no place", "of the requests that needed one"},
	{"unaccounted", "Tokens that no grant or count accounts for", ""},
}

// nameOf is a metric in words, or empty if there are none for it.
func nameOf(metric string) string {
	if i := slices.IndexFunc(figures, func(f figure) bool { return f.Metric == metric }); i >= 0 {
		return figures[i].Name
	}
	return ""
}

type outcome struct {
	Passed            bool
	Text, Name, Value string
}

// HTML writes the page of a report.
func HTML(w io.Writer, r *measure.Report) error {
	return pageTemplate.Execute(w, newPage(r))
}

// newPage returns what a page says of a report.
func newPage(r *measure.Report) *page {
	s := cmp.Or(r.Scenario, &scenario.Scenario{})
	p := &page{
		Style: template.CSS(styleText), Scenario: s, Report: r, Facts: facts(r, s), From: s.MeasuredFrom().String(),
		Whole: part{"", &r.Metrics}, Tiles: figures[:tiles], Faults: faults(r.Faults, 1),
		Parts: parts(r, s), Columns: figures[:ofParts],
	}
	if len(r.Faults) == 0 {
		p.Tiles = p.Tiles[:tiles-faultTiles]
	}
	if s.AtOnce.Places > 0 { // they are what the run is about
		p.Tiles = slices.Concat(figures[atOnceFigures:atOnceFigures+2], p.Tiles)
		p.Columns = slices.Concat(figures[atOnceFigures:atOnceFigures+2], p.Columns)
	}
	if all := charts(r, s); len(all) > 0 {
		p.First, p.Rest = all[:1], all[1:]
	}
	p.judge(r)
	return p
}

// part is a part of a run, or a limit.
type part struct {
	Name    string
	metrics *measure.Metrics
}

// Value is a metric as people read it.
func (p part) Value(metric string) string {
	return text(p.metrics.Value(metric), scenario.UnitOf(metric))
}

// text is a value as people write it, in at most three digits: 0.93 s, 0.9 %, 145/s, 12 300.
func text(v float64, u scenario.Unit) string {
	switch {
	case !known(v):
		return "unknown"
	case u == scenario.Ratio:
		return digits(v*100) + " %"
	case u == scenario.PerSec:
		return digits(v) + "/s"
	case u != scenario.Seconds:
		return digits(v)
	case v >= 0.0995 || v == 0:
		return digits(v) + " s"
	case v >= 0.0995e-3:
		return digits(v*1e3) + " ms"
	}
	return digits(v*1e6) + " µs"
}

// digits is v in at most three digits, two of them behind the point, and otherwise in zeros.
func digits(v float64) string {
	if v > 0 && v < 0.005 {
		return "< 0.01"
	}
	behind := 2
	for least := 9.995; v >= least && behind > 0; least *= 10 {
		behind--
	}
	unit := 1.0
	for v >= 999.5*unit {
		unit *= 10
	}
	if unit > 1 {
		v = math.Round(v/unit) * unit
	}
	s := strconv.FormatFloat(v, 'f', behind, 64)
	if behind > 0 {
		return strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	for at := len(s) - 3; at > 0; at -= 3 {
		s = s[:at] + "\u00a0" + s[at:]
	}
	return s
}

// known reports whether v is a value: no metric is negative, and none is above this.
func known(v float64) bool { return v >= 0 && v <= 1e15 }

// failModes says what a process does while it does not reach Redis.
var failModes = map[string]string{
	"local":  "without Redis each process admits its fallback",
	"open":   "without Redis each process admits everything",
	"closed": "without Redis each process refuses everything",
}

// facts are what was run, in a few words each.
func facts(r *measure.Report, s *scenario.Scenario) []string {
	mode := func(name string) string { return "fail-" + name + ": " + failModes[name] }
	list := []string{
		"length " + s.Length.String(), fmt.Sprintf("%d processes", s.Fleet.N), mode(cmp.Or(s.Fleet.Mode, "local")),
	}
	for _, l := range s.Limits {
		fact := fmt.Sprintf("limit %s: %s", l.Name, &l)
		if own, ok := r.FailModes[l.Name]; ok {
			fact += ", " + mode(own)
		}
		list = append(list, fact)
	}
	if n := s.AtOnce.Places; n > 0 {
		fact := fmt.Sprintf("%d places of each key", n)
		if r.AtOnceFailMode != "" {
			fact += ", " + mode(r.AtOnceFailMode)
		}
		list = append(list, fact)
	}
	return list
}

// judge adds what was expected and what had to happen, what did not come true first, and a sentence
// about it.
func (p *page) judge(r *measure.Report) {
	broken := 0
	add := func(o outcome) {
		at := len(p.Outcomes)
		if !o.Passed {
			at, broken = broken, broken+1
		}
		p.Outcomes = slices.Insert(p.Outcomes, at, o)
	}
	for _, o := range r.Expectations {
		metric, _, _ := strings.Cut(o.Text, " ")
		add(outcome{o.Passed, o.Text, nameOf(metric), text(o.Value, scenario.UnitOf(metric))})
	}
	for _, h := range r.Sometimes {
		if h.Wanted {
			add(outcome{h.Count > 0, "sometimes " + h.Name, "Had to happen", digits(float64(h.Count)) + " times"})
		}
	}
	p.Verdict = fmt.Sprintf("%d of %d expectations came true", len(p.Outcomes)-broken, len(p.Outcomes))
}

// parts are what the run was before, during and after the faults, and of each limit if there are
// several.
func parts(r *measure.Report, s *scenario.Scenario) (all []part) {
	for i := 0; i < len(r.Phases) && len(r.Phases) > 1; i++ { // a single one is the whole run
		p := &r.Phases[i]
		all = append(all, part{fmt.Sprintf("%s faults, %s to %s", p.Name, clock(p.FromS), clock(p.ToS)), &p.Metrics})
	}
	for _, l := range s.Limits {
		if m, ok := r.Limits[l.Name]; ok && len(s.Limits) > 1 {
			all = append(all, part{"limit " + l.Name, &m})
		}
	}
	return all
}
