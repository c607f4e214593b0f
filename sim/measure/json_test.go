package measure_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func jsonOf(t testing.TB, r *measure.Report) string {
	t.Helper()
	var b bytes.Buffer
	fatal.If(t, measure.JSON(&b, r))
	return b.String()
}

func TestReadWhatWasWritten(t *testing.T) {
	r := rehearsed()
	text := jsonOf(t, r)
	got := fatal.Get(measure.Read(strings.NewReader(text)))(t)
	if !reflect.DeepEqual(got, r) {
		t.Errorf("read %+v, wrote %+v", got, r)
	}
	want(t, "again", jsonOf(t, got), text)
	want(t, "text", got.String(), r.String())
}

func TestReadRefuses(t *testing.T) {
	good := jsonOf(t, rehearsed())
	change := func(old, new string) string {
		if strings.Count(good, old) == 0 {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "unexpected end of JSON input"},
		{"another schema before all else", `{"schema": 1, "series": "gone"}`, "schema is 1: must be 2"},
		{"no scenario", `{"schema": 2}`, "scenario is missing: a report has one"},
		{"more behind it", good + "{}", "after top-level value"},
		{"a wrong type", change(`"passed": false`, `"passed": 7`), "passed"},
	} {
		if _, err := measure.Read(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want … %s …", c.name, err, c.want)
		}
	}
	if _, err := measure.Read(strings.NewReader(change(`"schema": 2`, `"schema": 2, "new": {"x": 1}`))); err != nil {
		t.Errorf("a field of a later version: %v", err)
	}
}

// Every metric of package scenario is in a report, and each is a field of its own.
func TestValues(t *testing.T) {
	var x measure.Metrics
	v := reflect.ValueOf(&x).Elem()
	for i := range v.NumField() {
		v.Field(i).Set(reflect.ValueOf(i).Convert(v.Field(i).Type()))
	}
	seen := map[float64]bool{}
	for _, m := range scenario.Metrics {
		seen[x.Value(m.Name)] = true
	}
	want(t, "fields", len(seen)+3, v.NumField()) // and offered, admitted, ideal
	want(t, "known", seen[-1], false)
	near(t, "none", x.Value("nonsense"), -1)
}
