package measure

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

func jsonOf(t testing.TB, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReadWhatWasWritten(t *testing.T) {
	r := rehearsed()
	text := jsonOf(t, r)
	got, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, r) {
		t.Errorf("read %+v, wrote %+v", got, r)
	}
	want(t, "again", jsonOf(t, got), text)
	none := New(made(func(x *scenario.Scenario) { x.WarmUp = scenario.Duration(s / 1000) })).Report(0)
	if _, err := Read(strings.NewReader(jsonOf(t, none))); err != nil {
		t.Errorf("a run of no length: %v", err)
	}
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
		{"no report", "{}", "no schema"},
		{"an older schema", change(`"schema": 2`, `"schema": 1`), "schema is 1: this version reads 2 only, so run the scenario again"},
		{"a newer schema", change(`"schema": 2`, `"schema": 3`), "schema is 3: this version reads 2 only, and a newer one wrote it"},
		{"another schema before all else", `{"schema": 9, "series": "gone"}`, "schema is 9"},
		{"no scenario", `{"schema": 2}`, "scenario is missing: a report has one"},
		{"more behind it", good + "{}", "after top-level value"},
		{"a wrong type", change(`"passed": false`, `"passed": 7`), "passed"},
		{"unseed", change(`"unseed": "`, `"unseed": "x`), "16 hexadecimal digits"},
	} {
		if _, err := Read(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want … %s …", c.name, err, c.want)
		}
	}
	if _, err := Read(strings.NewReader(change(`"schema": 2`, `"schema": 2, "new": {"x": 1}`))); err != nil {
		t.Errorf("a field of a later version: %v", err)
	}
}

// What Read accepts can be written, read and shown.
func FuzzRead(f *testing.F) {
	short := New(made(func(x *scenario.Scenario) { x.Length = scenario.Duration(s) })).Report(s)
	var b bytes.Buffer
	if err := short.JSON(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"schema":2,"scenario":{"name":"n","limits":[{"name":"l","tokens":1,"burst":2}],"fleet":{"n":1}},` +
		`"metrics":{"heal":0.5},"phases":[{"name":"before","to_s":2}],"limits":{"l":{"alone_tokens":3}},"faults":[{"text":"at 1s flush","from_s":1,"to_s":1}],` +
		`"expectations":[{"text":"alone <= 1","value":0.5}],"sometimes":[{"name":"waited","count":1,"wanted":true}],` +
		`"series":{"step_s":1,"offered_per_s":[1],"admitted_per_s":[1],"alone_per_s":[1],"calls_per_s":[1],` +
		`"decide_max_us":[1],"open_ratio":[1]}}`))
	f.Add([]byte(`{"schema":2,"scenario":{},"series":{"step_s":1e-300,"offered_per_s":[1e308]},"faults":[{"from_s":-1e308,"to_s":1e308}]}`))
	f.Add([]byte(`{"schema":2,"scenario":{"name":"\u202e","limits":[{"name":"\n"}]},"metrics":{"decide_p99_us":1e308}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}
		text := r.String()
		if strings.ContainsAny(text, "\x1b\a\b\t\r\v\u202e") {
			t.Fatalf("not quoted: %q", text)
		}
		again, err := Read(strings.NewReader(jsonOf(t, r)))
		if err != nil {
			t.Fatal(err)
		}
		if again.String() != text {
			t.Fatalf("%s\nand again\n%s", text, again.String())
		}
		if d := Diff(r, again, 0); len(d) > 0 {
			t.Fatalf("it differs from itself: %v", d)
		}
	})
}

// Every metric of package scenario is in a report, in its unit, and each is a field of its own.
func TestValues(t *testing.T) {
	var x Metrics
	v := reflect.ValueOf(&x).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		f.Set(reflect.ValueOf(1000 * (i + 1)).Convert(f.Type()))
	}
	seen := map[float64]string{}
	for _, m := range scenario.Metrics {
		value := x.Value(m.Name)
		if was := seen[value]; was != "" || value < 0 {
			t.Errorf("%s is %v, as is %q", m.Name, value, was)
		}
		seen[value] = m.Name
	}
	want(t, "fields", len(seen)+3, v.NumField()) // and offered, admitted, ideal
	x = Metrics{DecideP99: 1500, Heal: 250, Alone: 7, Detect: -1, DecideMax: -1}
	near(t, "µs", x.Value("decide_p99"), 0.0015)
	near(t, "ms", x.Value("heal"), 0.25)
	near(t, "tokens", x.Value("alone"), 7)
	near(t, "not known", x.Value("detect"), -1)
	near(t, "not known", x.Value("decide_max"), -1)
	near(t, "none", x.Value("nonsense"), -1)
}

// A report holds no number that JSON cannot.
func TestFinite(t *testing.T) {
	for _, end := range []int64{0, 1, int64(s), int64(30 * s), int64(100 * s)} {
		m := New(made())
		ask(m, 1*s, 0, 0, "k", 3, 1)
		m.Called(2*s, 0, 5)
		var walk func(path string, v reflect.Value)
		walk = func(path string, v reflect.Value) {
			switch v.Kind() {
			case reflect.Float64:
				if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
					t.Errorf("end %d: %s is %v", end, path, f)
				}
			case reflect.Struct:
				for i := range v.NumField() {
					walk(path+"."+v.Type().Field(i).Name, v.Field(i))
				}
			case reflect.Slice:
				for i := range v.Len() {
					walk(path, v.Index(i))
				}
			case reflect.Map:
				for _, k := range v.MapKeys() {
					walk(path, v.MapIndex(k))
				}
			}
		}
		r := m.Report(time.Duration(end))
		walk("report", reflect.ValueOf(*r))
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	}
}
