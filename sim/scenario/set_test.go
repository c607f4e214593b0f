package scenario_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

const settable = `name: settable
limits:
  - {name: api, rate: 1000/s}
  - {name: users, rate: 100/min}
  - {name: a.b, rate: 5/s}
fleet: {n: 50}
traffic:
  - {shape: poisson, limit: api, rate: 1500/s}
  - {shape: closed, limit: users, clients: 10}
faults:
  - {at: 20s, kind: cut, for: 10s, procs: 5}
  - {at: 40s, kind: refuse, error: LOADING}
run: 1m
`

// Of what can be set the file has the line that changes, of all else the error.
func TestSet(t *testing.T) {
	checkGolden(t, "set.txt", func(t *testing.T, input string) string {
		var said []string
		for line := range strings.Lines(input) {
			path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			s := mustParse(t, settable)
			if err := s.Set(path, strings.Trim(value, `"`)); err != nil {
				if s.String() != settable {
					t.Errorf("%s: changed\n%s", line, s)
				}
				said = append(said, err.Error())
				continue
			}
			changed := ""
			for after := range strings.Lines(s.String()) {
				if !strings.Contains(settable, after) {
					changed += strings.TrimSpace(after)
				}
			}
			said = append(said, changed)
		}
		return strings.Join(said, "\n")
	})
}

// Every field can be set, to what it is by its own text too.
func TestPaths(t *testing.T) {
	s := mustParse(t, settable)
	paths := scenario.Paths(s)
	if len(paths) < 40 {
		t.Errorf("%d paths", len(paths))
	}
	for _, path := range paths {
		if err := s.Clone().Set(path, "\n"); err == nil || strings.Contains(err.Error(), "path is") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, value := range map[string]string{
		"fleet.n": "50", "limits.rate": "1000/s", "traffic.rate": "1500/s", "faults.1.for": "10s", "run": "1m",
	} {
		c := s.Clone()
		if err := c.Set(path, value); err != nil || !reflect.DeepEqual(c, s) {
			t.Errorf("%s: %v, and then\n%s", path, err, c)
		}
	}
}

// A clone shares nothing.
func TestClone(t *testing.T) {
	s := mustParse(t, written)
	c := s.Clone()
	if !reflect.DeepEqual(c, s) {
		t.Errorf("a clone is\n%s", c)
	}
	c.Limits[0].Limit.Tokens, c.Traffic[0].Rate, c.Faults[0].For, c.Expect[0].Value = 1, 1, 1, 1
	c.Sometimes[0], c.Sweep[0].Path, c.Sweep[0].Values[0] = "x", "x", "x"
	if s.String() != written {
		t.Errorf("changed with its clone:\n%s", s)
	}
}
