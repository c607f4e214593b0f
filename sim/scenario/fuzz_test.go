package scenario_test

import (
	"reflect"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// FuzzParse: any text is refused with errors of which each is a line, or it is what it is written
// as again.
func FuzzParse(f *testing.F) {
	for _, g := range readGolden(f, "errors.txt") {
		f.Add(full(g.input))
	}
	for _, text := range []string{ordinary, settable, written} {
		f.Add(text)
	}
	f.Add(`{"name":"x","limits":[{"name":"a","rate":"1\/s"}],"fleet":{"n":3},"traffic":[{"shape":"ramp"}],"run":"7s"}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := scenario.Parse(text)
		if err != nil {
			if s != nil || err.Error() == "" {
				t.Fatalf("%v, %q", s, err)
			}
			return
		}
		checkSame(t, s)
	})
}

// checkSame is that s is valid, and the same when it is written and read.
func checkSame(t *testing.T, s *scenario.Scenario) {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatalf("parsed, but not valid: %v", err)
	}
	text := s.String()
	again, err := scenario.Parse(text)
	if err != nil {
		t.Fatalf("%v\nof\n%s", err, text)
	}
	if !reflect.DeepEqual(again, s) || again.String() != text {
		t.Errorf("written\n%s\nand then\n%s", text, again)
	}
}
