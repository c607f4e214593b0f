package main

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/tiered-limiter/tiered-limiter/internal/overlay"
)

// mutant is one mistake, and who should notice it.
type mutant struct {
	name   string // the mistake, in a sentence
	theme  string // the file that has it, without .txt
	at     string // file:line
	rules  []string
	edits  []overlay.Edit
	tests  []test
	counts []way  // ways to fail that count as noticing it, besides an assertion
	unseen string // why no scenario of the simulator shows it
}

// test is one run of a package's tests.
type test struct {
	dir   string // of the package, from the root of the module
	run   string // regexp, as after go test -run
	args  []string
	extra []string // of the test's own
}

func (t test) String() string { return strings.Join(append([]string{t.dir, t.run}, t.args...), " ") }

// race reports whether the test wants the race detector.
func (t test) race() bool { return slices.Contains(t.args, "-race") }

//go:embed testdata/*.txt
var data embed.FS

// rulesFile lists the rules; every other file of testdata lists mistakes.
const rulesFile = "rules.txt"

// load reads all mistakes, and the rules by their names.
func load() (mutants []mutant, rules map[string]string, err error) {
	files, err := data.ReadDir("testdata")
	if err != nil {
		return nil, nil, err
	}
	text := func(name string) string {
		b, readErr := data.ReadFile(path.Join("testdata", name))
		err = errors.Join(err, readErr)
		return string(b)
	}
	if rules, err = parseRules(rulesFile, text(rulesFile)); err != nil {
		return nil, nil, err
	}
	seen := map[string]string{}
	for _, f := range files {
		if f.Name() == rulesFile {
			continue
		}
		some, parseErr := parse(f.Name(), text(f.Name()))
		err = errors.Join(err, parseErr)
		for _, m := range some {
			if at, ok := seen[m.name]; ok {
				err = errors.Join(err, fmt.Errorf("%s: %q is in %s already", m.at, m.name, at))
			}
			seen[m.name] = m.at
			for _, r := range m.rules {
				if rules[r] == "" {
					err = errors.Join(err, fmt.Errorf("%s: %s has no rule %q", m.at, rulesFile, r))
				}
			}
		}
		mutants = append(mutants, some...)
	}
	return mutants, rules, err
}

var ruleLine = regexp.MustCompile(`^([a-z]+ [0-9]+) +(\S.*)$`)

// parseRules reads lines of "theme number   text".
func parseRules(file, text string) (map[string]string, error) {
	rules := map[string]string{}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		m := ruleLine.FindStringSubmatch(line)
		if m == nil || rules[m[1]] != "" {
			return nil, fmt.Errorf("%s:%d: not a rule, or one twice: %s", file, i+1, line)
		}
		rules[m[1]] = m[2]
	}
	return rules, nil
}

// parse reads a list of mistakes. An entry is
//
//	== the mistake in a sentence
//	bends  script 4, process 8
//	tests  remote TestBound
//	tests  local 'TestA|TestB' -race -count=3
//	counts panic
//	unseen why no scenario of the simulator shows it
//	file   lua/token_bucket.lua
//	  a line of the file that says where
//	- a line of the file that goes
//	+ one that comes
//
// with a blank line or another file between one change and the next. Lines that begin with # are comments.
func parse(file, text string) ([]mutant, error) {
	p := parser{theme: strings.TrimSuffix(file, ".txt")}
	for i, line := range strings.Split(text, "\n") {
		p.at = fmt.Sprintf("%s:%d", file, i+1)
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("%s: %w", p.at, err)
		}
	}
	if err := p.end(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return p.all, nil
}

type parser struct {
	theme, at string
	all       []mutant
	file      string // that the changes are in
	changing  bool   // the last edit goes on
}

func (p *parser) line(line string) error {
	if line == "" || line[0] == '#' {
		p.changing = false
		return nil
	}
	if name, ok := strings.CutPrefix(line, "== "); ok {
		if err := p.end(); err != nil {
			return err
		}
		p.all = append(p.all, mutant{name: name, theme: p.theme, at: p.at})
		p.file, p.changing = "", false
		return nil
	}
	if len(p.all) == 0 {
		return errors.New("the first entry begins with ==")
	}
	m := &p.all[len(p.all)-1]
	if strings.ContainsRune("-+ ", rune(line[0])) {
		return p.change(m, line[0], strings.TrimSpace(line[1:]))
	}
	p.changing = false
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	if rest == "" {
		return fmt.Errorf("%q says nothing", word)
	}
	switch word {
	case "bends":
		for r := range strings.SplitSeq(rest, ",") {
			m.rules = append(m.rules, strings.TrimSpace(r))
		}
	case "tests":
		t, err := parseTest(rest)
		if err != nil {
			return err
		}
		m.tests = append(m.tests, t)
	case "counts":
		w := way(rest)
		if w != panics && w != hangs && w != races {
			return fmt.Errorf("%q is no way to fail: %s, %s or %s", rest, panics, hangs, races)
		}
		m.counts = append(m.counts, w)
	case "unseen":
		m.unseen = rest
	case "file":
		if path.Clean(rest) != rest || path.IsAbs(rest) || strings.HasPrefix(rest, "..") || strings.HasSuffix(rest, "_test.go") {
			return fmt.Errorf("%q is not a source file of the module", rest)
		}
		p.file = rest
	default:
		return fmt.Errorf("%q is not a word of an entry", word)
	}
	return nil
}

// change takes one line of an edit.
func (p *parser) change(m *mutant, mark byte, text string) error {
	if p.file == "" {
		return errors.New("a change before its file")
	}
	if !p.changing {
		m.edits = append(m.edits, overlay.Edit{File: p.file, At: p.at})
		p.changing = true
	}
	e := &m.edits[len(m.edits)-1]
	if mark != '+' {
		if text == "" {
			return errors.New("a blank line says not where")
		}
		e.Old = append(e.Old, text)
	}
	if mark != '-' {
		e.New = append(e.New, text)
	}
	return nil
}

// end checks that the last entry is whole.
func (p *parser) end() error {
	if len(p.all) == 0 {
		return nil
	}
	m := p.all[len(p.all)-1]
	switch {
	case len(m.rules) == 0, len(m.tests) == 0, len(m.edits) == 0:
		return fmt.Errorf("%q (%s) lacks what it bends, its tests or its changes", m.name, m.at)
	}
	for _, e := range m.edits {
		if len(e.Old) == 0 {
			return fmt.Errorf("%s: does not say where", e.At)
		}
		if slices.Equal(e.Old, e.New) {
			return fmt.Errorf("%s: changes nothing", e.At)
		}
	}
	return nil
}

// flags are the arguments that a test may have, and nothing else: they must mean the same to a test binary.
var flags = regexp.MustCompile(`^-(race|short|cpu=[0-9,]+|count=[0-9]+|timeout=[0-9]+s)$`)

func parseTest(text string) (test, error) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return test{}, errors.New("tests wants a package and a regexp")
	}
	t := test{dir: words[0], run: strings.Trim(words[1], "'"), args: words[2:]}
	if path.Clean(t.dir) != t.dir || path.IsAbs(t.dir) || strings.HasPrefix(t.dir, "..") {
		return test{}, fmt.Errorf("%q is not a package of the module", t.dir)
	}
	if _, err := regexp.Compile(t.run); err != nil {
		return test{}, err
	}
	for _, a := range t.args {
		if !flags.MatchString(a) {
			return test{}, fmt.Errorf("%q is not an argument that a test may have", a)
		}
	}
	return t, nil
}
