package policyfile_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/atonce"
	"github.com/tiered-limiter/tiered-limiter/tiered/policyfile"
)

// A file has policies of what runs at the same time. Its text, and the schema, have all that it
// says.
func TestAtOnce(t *testing.T) {
	const text = `version: 1
policies: [{name: a, limit: 1/s}]
at_once:
  - {name: in-flight, places: 5}
  - {name: exports, places: 20, plans: {pro: 50}, fail_mode: closed, life: 30s, max_run: 10m}
`
	fatal.If(t, validate(t, compile(t), []byte(text)))
	f := fatal.Get(policyfile.Parse("p.yaml", []byte(text)))(t)
	want := []atonce.Policy{
		{Name: "in-flight", Places: 5},
		{
			Name: "exports", Places: 20, Plans: map[string]int{"pro": 50}, FailMode: tiered.FailClosed,
			Life: 30 * time.Second, MaxRun: 10 * time.Minute,
		},
	}
	if !reflect.DeepEqual(f.AtOnce, want) {
		t.Errorf("%+v", f.AtOnce)
	}
	again := fatal.Get(policyfile.Parse("p.yaml", []byte(f.String())))(t)
	want[0].Life = atonce.DefaultLife
	if !reflect.DeepEqual(again.AtOnce, want) {
		t.Errorf("written as %s\nand read as %+v", f, again.AtOnce)
	}
	for wrong, want := range map[string]string{
		"{places: 5}":                                "p.yaml:3:11: at_once[0].name is missing",
		"{name: b}":                                  "at_once[0].places is missing",
		"{name: b, places: 0}":                       "at_once[0]: Policy.Places is 0: must be 1 to 2^20",
		"{name: b, places: x}":                       `at_once[0].places: is "x": must be 1 to 1048576`,
		"{name: b, places: 5, life: 1ms}":            "at_once[0]: Policy.Life is 1ms: must be 1s to 1h",
		"{name: b, places: 5, plans: {p: 0}}":        `at_once[0]: Policy.Plans["p"] is 0`,
		"{name: b, places: 5, limit: 1/s}":           "must be one of",
		"{name: b, places: 5}, {name: b, places: 5}": "at_once[1]: name is \"b\": the policy in line 3 has that name",
	} {
		_, err := policyfile.Parse("p.yaml", []byte("version: 1\npolicies: []\nat_once: ["+wrong+"]\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", wrong, err, want)
		}
	}
}
