package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Parse reads a scenario from text, of at most [MaxBytes] in at most [MaxLines] lines. It reports all that is wrong with
// it at once, as [Errors], each with line and column; a *Scenario comes only without. It never panics. The rules are those of
// [Scenario.Validate], only that here the faults may be in any order; they come sorted by their times.
func Parse(text string) (*Scenario, error) {
	if len(text) > MaxBytes {
		return nil, Errors{{Line: 1, Column: 1, Offset: -1, Text: says("the text", fmt.Sprintf("%d bytes long", len(text)), fmt.Sprintf("must be at most %d", MaxBytes))}}
	}
	lines := strings.Split(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if len(lines) > MaxLines {
		return nil, Errors{{Line: MaxLines + 1, Column: 1, Offset: -1, Text: says("the text", fmt.Sprintf("%d lines long", len(lines)), fmt.Sprintf("must be at most %d", MaxLines))}}
	}
	p := &parser{s: &Scenario{}, at: map[string]token{}, end: token{"", len(lines) + 1, 1}}
	p.checker = newChecker(p.reportPath)
	for i, line := range lines {
		p.line(line, i+1)
	}
	p.checker.scenario(p.s)
	if err := p.errs.sorted(); err != nil {
		return nil, err
	}
	p.s.sortFaults()
	if n := len(p.s.String()); n > MaxBytes { // many short words that stand for long ones
		return nil, Errors{{Line: 1, Column: 1, Offset: -1, Text: says("the scenario", fmt.Sprintf("%d bytes of canonical text", n), fmt.Sprintf("must be at most %d", MaxBytes))}}
	}
	return p.s, nil
}

func (s *Scenario) sortFaults() {
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

// parser fills a scenario and remembers where each field was.
type parser struct {
	s       *Scenario
	at      map[string]token // by path, where its value or its statement is
	end     token            // after the last line, where what is missing would be
	errs    Errors
	checker checker
}

// wrong reports an error at a place.
func (p *parser) wrong(t token, path, field, value, rule string) {
	p.errs = append(p.errs, &Error{Line: t.line, Column: t.column, Offset: -1, Path: path, Text: says(field, value, rule)})
}

// refuse is wrong of a field; what follows from it is not reported as well.
func (p *parser) refuse(t token, path, field, value, rule string) {
	p.checker.bad[path] = true
	p.wrong(t, path, field, value, rule)
}

// reportPath is for the checker, which knows paths only.
func (p *parser) reportPath(path, value, rule string) {
	t, found := p.at[path]
	for up := path; !found; t, found = p.at[up] {
		i := strings.LastIndexAny(up, ".[")
		if i < 0 {
			t = p.end
			break
		}
		up = up[:i]
	}
	p.wrong(t, path, inText(path), value, rule)
}

// inText is what text calls the field of a path: limits[2].burst is burst, faults is at.
func inText(path string) string {
	name := path[strings.LastIndexByte(path, '.')+1:]
	name, _, _ = strings.Cut(name, "[")
	switch name {
	case "limits":
		return "limit"
	case "faults":
		return "at"
	case "values":
		return "value"
	}
	return name
}

// statements are the words that a line may begin with, what comes after each, and the field that it fills.
var statements = []struct {
	name, form string
	path       string
	once       bool
	parse      func(p *parser, s statement)
}{
	{"name", `"TEXT"`, "name", true, (*parser).name},
	{"learn", `"TEXT"`, "learn", true, (*parser).learn},
	{"limit", "NAME rate=TOKENS/PERIOD …", "limits", false, (*parser).limit},
	{"fleet", "n=PROCESSES …", "fleet", true, (*parser).fleet},
	{"traffic", "SHAPE …", "traffic", false, (*parser).traffic},
	{"net", "rtt=TIME …", "net", true, (*parser).net},
	{"at", "TIME KIND …", "faults", false, (*parser).fault},
	{"run", "TIME …", "run", true, (*parser).run},
	{"expect", "METRIC <= VALUE …", "expect", false, (*parser).expect},
	{"sometimes", "HAPPENING …", "sometimes", false, (*parser).sometimes},
	{"sweep", "PATH=VALUE,VALUE …", "sweep", false, (*parser).sweep},
}

// statement is a line: its word, and the words after it.
type statement struct {
	token
	name, form string
	rest       []token
}

func (p *parser) line(text string, number int) {
	if !utf8.ValidString(text) {
		bad := strings.IndexByte(strings.ToValidUTF8(text, "\xff"), 0xff) // it keeps what is before
		p.wrong(token{line: number, column: utf8.RuneCountInString(text[:bad]) + 1}, "", "the line", "no UTF-8 from here", "must be UTF-8")
		return
	}
	words, rule := split(text, number)
	if rule != "" {
		last := words[len(words)-1]
		p.wrong(last, "", "quoted text", showRaw(last.text), rule)
		p.hint(words)
		return
	}
	if len(words) == 0 {
		return
	}
	for _, st := range statements {
		if st.name != words[0].text {
			continue
		}
		if first, again := p.at[st.path]; again && st.once {
			p.wrong(words[0], st.path, st.name, "there again", fmt.Sprintf("must be there once, and is on line %d", first.line))
			return
		} else if !again {
			p.at[st.path] = words[0]
		}
		st.parse(p, statement{words[0], st.name, st.form, words[1:]})
		return
	}
	all := make([]string, len(statements))
	for i, st := range statements {
		all[i] = st.name
	}
	p.wrong(words[0], "", "statement", show(words[0].text), oneOf(words[0].text, all))
	p.hint(words)
}

// hint keeps a line that could not be read from being missed as well.
func (p *parser) hint(words []token) {
	for _, st := range statements {
		if st.name == words[0].text || nearest(words[0].text, []string{st.name}) != "" {
			for _, path := range map[string][]string{"fleet": {"fleet.n"}, "run": {"run", "warmup"}}[st.name] {
				p.checker.bad[path] = true
			}
			p.checker.bad[st.path] = true
		}
	}
}

// word takes the next word of a statement; without one it says what the statement looks like.
func (p *parser) word(s *statement, path, field string) (t token, text string, ok bool) {
	if len(s.rest) == 0 {
		p.refuse(s.token, path, field, missing, fmt.Sprintf("must be written as in `%s %s`", s.name, s.form))
		return s.token, "", false
	}
	t, s.rest = s.rest[0], s.rest[1:]
	p.at[path] = t
	text, rule := t.value()
	if rule != "" {
		p.refuse(t, path, field, showRaw(t.text), rule)
		return t, "", false
	}
	return t, text, true
}

// nothing makes sure that a statement is over.
func (p *parser) nothing(s *statement) {
	if len(s.rest) > 0 {
		p.wrong(s.rest[0], "", "the rest of the line", showRaw(s.rest[0].text), fmt.Sprintf("must be written as in `%s %s`", s.name, s.form))
	}
}

func (p *parser) name(s statement)  { p.quoted(s, "name", &p.s.Name) }
func (p *parser) learn(s statement) { p.quoted(s, "learn", &p.s.Learn) }

func (p *parser) quoted(s statement, path string, to *string) {
	t, text, ok := p.word(&s, path, path)
	if ok && t.text[0] != '"' {
		p.refuse(t, path, path, showRaw(t.text), "must be in quotes")
		return
	}
	*to = text
	if ok && text == "" {
		p.refuse(t, path, path, t.text, "must not be empty")
	}
	p.nothing(&s)
}

func (p *parser) limit(s statement) {
	path := fmt.Sprintf("limits[%d]", len(p.s.Limits))
	l := Limit{}
	p.at[path] = s.token
	_, l.Name, _ = p.word(&s, path+".name", "name")
	readParams(p, s, path+".", "limit", &l, limitFields, nil)
	if _, given := p.at[path+".rate"]; !given {
		p.refuse(s.token, path+".rate", "rate", missing, "must be written as in `limit NAME rate=1000/s`")
	}
	p.s.Limits = append(p.s.Limits, l)
}

func (p *parser) fleet(s statement) {
	readParams(p, s, "fleet.", "fleet", &p.s.Fleet, fleetFields, nil)
}

func (p *parser) net(s statement) { readParams(p, s, "net.", "net", &p.s.Net, netFields, nil) }

func (p *parser) traffic(s statement) {
	path := fmt.Sprintf("traffic[%d]", len(p.s.Traffic))
	t := Traffic{}
	p.at[path] = s.token
	_, t.Shape, _ = p.word(&s, path+".shape", "shape")
	what := t.Shape
	takes, _, known := shapeTakes(t.Shape)
	if !known {
		what = s.name
	}
	readParams(p, s, path+".", what, &t, trafficFields, takes)
	p.s.Traffic = append(p.s.Traffic, t)
}

func (p *parser) fault(s statement) {
	path := fmt.Sprintf("faults[%d]", len(p.s.Faults))
	f := Fault{}
	p.at[path] = s.token
	if t, text, ok := p.word(&s, path+".at", "time"); ok {
		if f.At, ok = parseDuration(text); !ok {
			p.refuse(t, path+".at", "time", showRaw(t.text), "must be a duration, as in 20s or 1m30s")
		}
	}
	if len(s.rest) == 0 && p.checker.bad[path+".at"] { // said already
		p.checker.bad[path+".kind"] = true
	} else {
		_, f.Kind, _ = p.word(&s, path+".kind", "kind")
	}
	what := f.Kind
	takes, _, known := kindTakes(f.Kind)
	if !known {
		what = s.name
	}
	readParams(p, s, path+".", what, &f, faultFields, takes)
	p.s.Faults = append(p.s.Faults, f)
}

func (p *parser) run(s statement) {
	if t, text, ok := p.word(&s, "run", "run"); ok {
		if rule := lengthField.span.set(&p.s.Length, text); rule != "" {
			p.refuse(t, "run", "run", showRaw(t.text), rule)
		}
	}
	readParams(p, s, "", "run", p.s, runFields, nil)
}

func (p *parser) expect(s statement) {
	path := fmt.Sprintf("expect[%d]", len(p.s.Expect))
	e := Expectation{}
	p.at[path] = s.token
	var ok bool
	if _, e.Metric, ok = p.word(&s, path+".metric", "metric"); !ok {
		p.checker.bad[path+".op"], p.checker.bad[path+".value"] = true, true
	} else if _, e.Op, ok = p.word(&s, path+".op", "op"); !ok {
		p.checker.bad[path+".value"] = true
	} else if t, text, ok := p.word(&s, path+".value", "value"); ok {
		if m, known := metric(e.Metric); known {
			var rule string
			if e.Value, rule = m.Unit.parse(text); rule != "" {
				p.refuse(t, path+".value", "value", showRaw(t.text), rule)
			}
		}
	}
	readParams(p, s, path+".", "expect", &e, expectFields, nil)
	p.s.Expect = append(p.s.Expect, e)
}

func (p *parser) sometimes(s statement) {
	for more := true; more; more = len(s.rest) > 0 {
		path := fmt.Sprintf("sometimes[%d]", len(p.s.Sometimes))
		_, text, ok := p.word(&s, path, "sometimes")
		if !ok && p.at[path].line == 0 {
			return // there is none
		}
		p.s.Sometimes = append(p.s.Sometimes, text)
	}
}

func (p *parser) sweep(s statement) {
	for more := true; more; more = len(s.rest) > 0 {
		path := fmt.Sprintf("sweep[%d]", len(p.s.Sweep))
		if len(s.rest) == 0 {
			p.word(&s, path, "sweep")
			return
		}
		t := s.rest[0]
		s.rest = s.rest[1:]
		name, value, ok := t.parameter()
		if !ok {
			p.wrong(t, path, "sweep", showRaw(t.text), fmt.Sprintf("must be written as in `%s %s`", s.name, s.form))
			continue
		}
		p.at[path], p.at[path+".path"], p.at[path+".values"] = t, t, value
		a := Axis{Path: name}
		for j, v := range value.list() {
			at := fmt.Sprintf("%s.values[%d]", path, j)
			p.at[at] = v
			text, rule := v.value()
			if rule != "" {
				p.refuse(v, at, "value", showRaw(v.text), rule)
			}
			a.Values = append(a.Values, text)
		}
		p.s.Sweep = append(p.s.Sweep, a)
	}
}

// readParams reads name=value up to the end of the line into fields of t. takes are those that may be given, nil for all;
// what is the word that takes them.
func readParams[T any](p *parser, s statement, prefix, what string, t *T, fields []field[T], takes []string) {
	list := takes
	if list == nil {
		list = names(fields)
	}
	for _, w := range s.rest {
		name, value, ok := w.parameter()
		if !ok {
			p.wrong(w, "", "parameter", show(w.text), "must be written as name=value, without blanks")
			continue
		}
		path := prefix + name
		f := find(fields, name)
		if f == nil {
			p.wrong(w, path, show(name), unknown, takesRule(what, list)+meant(name, list))
			continue
		}
		if _, again := p.at[path]; again {
			p.wrong(w, path, name, "there again", "must be there once")
			continue
		}
		p.at[path] = value
		text, rule := value.value()
		switch {
		case rule != "":
		case takes != nil && !slices.Contains(takes, name):
			p.refuse(w, path, name, show(text), notTaken(what, takes))
			continue
		default:
			rule = f.span.set(f.at(t), text)
		}
		if rule != "" {
			p.refuse(value, path, name, showRaw(value.text), rule)
		}
	}
}

// takesRule is the rule that a parameter breaks of which nobody has heard.
func takesRule(what string, takes []string) string {
	if len(takes) == 0 {
		return what + " takes no parameters"
	}
	return what + " takes " + strings.Join(takes, ", ")
}
