package scenario

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const settable = `name    "settable"
limit   api rate=1000/s
limit   users rate=100/min
limit   a.b rate=5/s
fleet   n=50
traffic poisson limit=api rate=1500/s
traffic closed limit=users clients=10
at 20s  cut for=10s procs=5
at 40s  refuse error=LOADING
run     60s
`

func mustParse(t testing.TB, text string) *Scenario {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Of what can be set the file has the line that changes, of all else the error.
func TestSet(t *testing.T) {
	checkGolden(t, "set.txt", func(t *testing.T, input string) string {
		var said []string
		for line := range strings.Lines(input) {
			path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			s := mustParse(t, settable)
			before := s.String()
			err := s.Set(path, strings.Trim(value, `"`))
			if err == nil {
				changed := ""
				for after := range strings.Lines(s.String()) {
					if !strings.Contains(before, after) {
						changed += strings.TrimSpace(after)
					}
				}
				said = append(said, changed)
				continue
			}
			var e *Error
			if !errors.As(err, &e) || e.Path != path || e.Line != 0 {
				t.Errorf("%+v", e)
			}
			if s.String() != before {
				t.Errorf("%s: changed\n%s", line, s)
			}
			said = append(said, err.Error())
		}
		return strings.Join(said, "\n")
	})
}

// Every path that Paths names can be set, to what it is by its own text too.
func TestPaths(t *testing.T) {
	s := mustParse(t, settable)
	paths := s.Paths()
	if len(paths) < 40 {
		t.Errorf("%d paths", len(paths))
	}
	for _, path := range paths {
		err := s.Clone().Set(path, "x\n")
		if err == nil || strings.Contains(err.Error(), "path is") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, value := range map[string]string{"fleet.n": "50", "limit.rate": "1000/s", "traffic.rate": "1500/s", "at.1.for": "10s", "run": "1m"} {
		c := s.Clone()
		if err := c.Set(path, value); err != nil || !reflect.DeepEqual(c, s) {
			t.Errorf("%s: %v, and then\n%s", path, err, c)
		}
	}
}

// A clone shares nothing.
func TestClone(t *testing.T) {
	text := settable + "expect lost <= 5\nsometimes waited\nsweep fleet.n=1,2\n"
	s := mustParse(t, text)
	before := s.String()
	c := s.Clone()
	c.Limits[0].Tokens, c.Traffic[0].Rate, c.Faults[0].For, c.Expect[0].Value = 1, 1, 1, 1
	c.Sometimes[0], c.Sweep[0].Path, c.Sweep[0].Values[0] = "x", "x", "x"
	if s.String() != before {
		t.Errorf("changed with its clone:\n%s", s)
	}
}
