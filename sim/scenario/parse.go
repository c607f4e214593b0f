package scenario

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// Parse reads a scenario from text, of at most 64 KiB in at most 2000 lines. It reports all that is wrong
// with it at once, as [Errors], each with line and column; a *Scenario comes only without. It never panics. The rules
// are those of [Scenario.Validate], only that here the faults may be in any order; they come sorted by their times.
func Parse(text string) (*Scenario, error) {
	lines := strings.Split(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	start := place{1, 1}
	end := place{len(lines) + 1, 1}
	if err := start.atMost("the text", len(text), "bytes long", maxBytes); err != nil {
		return nil, err
	}
	if err := (place{maxLines + 1, 1}).atMost("the text", len(lines), "lines long", maxLines); err != nil {
		return nil, err
	}
	p := &parser{s: &Scenario{}, checker: newChecker(end)}
	p.name = inText
	for i, line := range lines {
		p.line(line, i+1)
	}
	p.scenario(p.s)
	p.s.sortFaults()
	if err := p.verdict(p.s, "bytes of canonical text", start); err != nil { // many short words may stand for long ones
		return nil, err
	}
	return p.s, nil
}

func (s *Scenario) sortFaults() {
	slices.SortStableFunc(s.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
}

// parser fills a scenario and remembers where each field was.
type parser struct {
	s *Scenario
	checker
}

// refuse reports an error of a field. What follows from it is not reported.
func (p *parser) refuse(t token, path, field, value, rule string) {
	p.bad[path] = true
	p.report(t.place, path, field, value, rule)
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

// line is a statement that is being read: its first word, and the words after it.
type line struct {
	token
	*statement
	rest []token
}

// form says what the statement looks like.
func (s *line) form() string {
	return fmt.Sprintf("must be written as in `%s %s`", s.name, s.statement.form)
}

func (p *parser) line(text string, number int) {
	if !utf8.ValidString(text) {
		bad := strings.IndexByte(strings.ToValidUTF8(text, "\xff"), 0xff) // it keeps what is before
		at := place{number, utf8.RuneCountInString(text[:bad]) + 1}
		p.report(at, "", "the line", "no UTF-8 from here", "must be UTF-8")
		return
	}
	words, rule := split(text, number)
	if rule != "" {
		last := words[len(words)-1]
		p.report(last.place, "", "quoted text", showRaw(last.text), rule)
		p.hint(words)
		return
	}
	if len(words) == 0 {
		return
	}
	for i := range statements {
		st := &statements[i]
		if st.name != words[0].text {
			continue
		}
		if first, again := p.at[st.path]; !again {
			p.at[st.path] = words[0].place
		} else if st.once() {
			rule := fmt.Sprintf("must be there once, and is on line %d", first.line)
			p.report(words[0].place, st.path, st.name, "there again", rule)
			return
		}
		l := &line{words[0], st, words[1:]}
		if st.parse != nil {
			st.parse(p, l)
		} else {
			p.item(l)
		}
		return
	}
	all := names(statements, func(st statement) string { return st.name })
	p.report(words[0].place, "", "statement", show(words[0].text), oneOf(words[0].text, all))
	p.hint(words)
}

// hint keeps a line that could not be read from being reported as missing too.
func (p *parser) hint(words []token) {
	for _, st := range statements {
		if st.name == words[0].text || Nearest(words[0].text, []string{st.name}) != "" {
			for _, path := range map[string][]string{"fleet": {"fleet.n"}, "run": {"run", "warmup"}}[st.name] {
				p.bad[path] = true
			}
			p.bad[st.path] = true
		}
	}
}

// word takes the next word of a statement; without one it says what the statement looks like.
func (p *parser) word(s *line, path, field string) (t token, text string, ok bool) {
	if len(s.rest) == 0 {
		p.refuse(s.token, path, field, missing, s.form())
		return s.token, "", false
	}
	t, s.rest = s.rest[0], s.rest[1:]
	p.at[path] = t.place
	text, rule := t.value()
	if rule != "" {
		p.refuse(t, path, field, showRaw(t.text), rule)
		return t, "", false
	}
	return t, text, true
}

// item reads a statement of words and parameters.
func (p *parser) item(s *line) {
	item, path := s.add(p.s)
	if path != "" && path != s.path { // else it is where the first one is
		p.at[path] = s.token.place
	}
	said := false // words are reported as missing
	for i := range s.words {
		w := &s.words[i]
		at := join(path, w.path)
		if said && len(s.rest) == 0 {
			p.bad[at] = true
			continue
		}
		t, text, ok := p.word(s, at, w.field)
		if ok {
			if rule := w.read(item, text); rule != "" {
				p.refuse(t, at, w.field, showRaw(t.text), rule)
			}
		}
		said = p.bad[at]
	}
	p.parameters(s, path, item)
	if _, given := p.at[path+".rate"]; !given && s.name == "limit" {
		p.refuse(s.token, path+".rate", "rate", missing, "must be written as in `limit NAME rate=1000/s`")
	}
}

// add makes room for an item of the statement.
func (st *statement) add(s *Scenario) (item any, path string) {
	if v := member(s, st.path); v.Kind() == reflect.Slice {
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	}
	for path, item = range st.items(s) { // the last one
	}
	return item, path
}

// quoted reads a statement that is a text.
func (p *parser) quoted(s *line) {
	t, text, ok := p.word(s, s.path, s.path)
	if ok && t.text[0] != '"' {
		p.refuse(t, s.path, s.path, showRaw(t.text), "must be in quotes")
		return
	}
	member(p.s, s.path).SetString(text)
	if ok && text == "" {
		p.refuse(t, s.path, s.path, t.text, "must not be empty")
	}
	if len(s.rest) > 0 {
		p.report(s.rest[0].place, "", "the rest of the line", showRaw(s.rest[0].text), s.form())
	}
}

func (p *parser) sometimes(s *line) {
	for more := true; more; more = len(s.rest) > 0 {
		path := fmt.Sprintf("sometimes[%d]", len(p.s.Sometimes))
		if _, text, ok := p.word(s, path, "sometimes"); ok || p.at[path].line > 0 {
			p.s.Sometimes = append(p.s.Sometimes, text)
		}
	}
}

func (p *parser) sweep(s *line) {
	if len(s.rest) == 0 {
		p.word(s, fmt.Sprintf("sweep[%d]", len(p.s.Sweep)), "sweep")
	}
	for _, t := range s.rest {
		path := fmt.Sprintf("sweep[%d]", len(p.s.Sweep))
		name, value, ok := t.parameter()
		if !ok {
			p.report(t.place, path, "sweep", showRaw(t.text), s.form())
			continue
		}
		p.at[path], p.at[path+".path"], p.at[path+".values"] = t.place, t.place, value.place
		a := Axis{Path: name}
		for j, v := range value.list() {
			at := fmt.Sprintf("%s.values[%d]", path, j)
			p.at[at] = v.place
			text, rule := v.value()
			if rule != "" {
				p.refuse(v, at, "value", showRaw(v.text), rule)
			}
			a.Values = append(a.Values, text)
		}
		p.s.Sweep = append(p.s.Sweep, a)
	}
}

// parameters reads name=value up to the end of the line into an item.
func (p *parser) parameters(s *line, path string, item any) {
	what, takes, _, _ := s.takes(item)
	for _, w := range s.rest {
		name, value, ok := w.parameter()
		if !ok {
			p.report(w.place, "", "parameter", show(w.text), "must be written as name=value, without blanks")
			continue
		}
		at := join(path, name)
		f := s.field(name)
		if f == nil {
			p.report(w.place, at, show(name), unknown, takesOnly(what, "takes", takes)+meant(name, takes))
			continue
		}
		if _, again := p.at[at]; again {
			p.report(w.place, at, name, "there again", "must be there once")
			continue
		}
		p.at[at] = value.place
		text, rule := value.value()
		switch {
		case rule != "":
		case !slices.Contains(takes, name):
			p.refuse(w, at, name, show(text), takesOnly(what, "does not take it, it takes", takes))
			continue
		default:
			rule = f.read(item, text)
		}
		if rule != "" {
			p.refuse(value, at, name, showRaw(value.text), rule)
		}
	}
}

// takesOnly is the rule that a parameter breaks which a statement or a kind does not take.
func takesOnly(what, takes string, list []string) string {
	if len(list) == 0 {
		return what + " takes no parameters"
	}
	return what + " " + takes + " " + strings.Join(list, ", ")
}
