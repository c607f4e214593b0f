package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/doc/comment"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The scenario in the package's comment is one, and prints as it stands there but for the order of its lines.
func TestDocExample(t *testing.T) {
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(source), "\npackage ")
	var p comment.Parser
	for _, block := range p.Parse(strings.ReplaceAll(strings.ReplaceAll(text, "// ", ""), "//", "")).Content {
		if code, ok := block.(*comment.Code); ok {
			s := mustParse(t, code.Text)
			if len(s.Limits) != 2 || len(s.Traffic) != 2 || len(s.Faults) != 2 || len(s.Expect) != 2 || len(s.Sweep) != 2 {
				t.Errorf("%+v", s)
			}
			return
		}
	}
	t.Error("there is none")
}

// Canonical text, as people will see it.
func TestString(t *testing.T) {
	want := `name      "all \"of\" it"
learn     "much"
limit     api rate=1000/s burst=500
limit     llm rate=1000000/min
limit     odd rate=10/100ms
fleet     n=50 mode=closed size=-1 period=1s processes=50 budget=10ms timeout=30ms maxkeys=1000 inflight=2
traffic   poisson limit=api rate=1500.5/s keys=200 keyskew=1.1 procskew=0.5 cost=2 maxcost=9 cancel=50%
traffic   bursts limit=llm rate=10/s every=2s for=800ms keys=-1
traffic   ramp limit=api rate=1/s to=100/s
traffic   diurnal limit=api rate=1/s to=100/s every=1m30s
traffic   closed limit=odd clients=100 think=50ms retry=3
net       rtt=300us jitter=1.5ms
at 20s    blackhole for=15s procs=10% only=replies
at 20s    clock by=-1h
at 1h0m1s refuse for=1s error="ERR max number of clients reached"
run       2h warmup=5s
expect    over_admission <= 1000
expect    shortfall <= 5% after=20s before=1m limit=llm
expect    decide_p99 <= 1.5ms
expect    redis_calls <= 500/s
expect    jain >= 99.5%
expect    breaker_changes <= 2
sometimes breaker_open lease_lost
sweep     fleet.size=0,1_0
sweep     limit.rate=5/min
`
	if got := mustParse(t, want).String(); got != want {
		t.Errorf("printed\n%s\nwant\n%s", got, want)
	}
	var nothing Scenario
	if got := nothing.String(); got != "name      \"\"\nfleet     \nrun       0s\n" {
		t.Errorf("nothing prints as %q", got)
	}
}

// A rate per period, a share and a time are the numbers that people mean.
func TestValues(t *testing.T) {
	s := mustParse(t, strings.ReplaceAll(ordinary, "rate=1500/s", "limit=api rate=1500/s")+`limit a rate=7/day
limit b rate=100_000/min burst=1_000
limit c rate=3/5m
traffic poisson limit=a rate=90/min cancel=0.1%
traffic poisson limit=a rate=2.5/100ms cancel=0.3
at 0.5m crash procs=12.5%
expect decide_p99 <= 1m0.5s
expect redis_calls <= 6/min
expect redis_calls <= 6
expect lost <= 1_000.5
expect decide_max <= 0
`)
	day := 24 * time.Hour
	if !slices.Equal(s.Limits[1:], []Limit{{"a", 7, Duration(day), 0}, {"b", 100_000, Duration(time.Minute), 1000}, {"c", 3, Duration(5 * time.Minute), 0}}) {
		t.Errorf("%+v", s.Limits)
	}
	if s.Traffic[1].Rate != 1.5 || s.Traffic[1].Cancel != 0.001 || s.Traffic[2].Rate != 25 || s.Traffic[2].Cancel != 0.3 {
		t.Errorf("%+v", s.Traffic)
	}
	if s.Faults[0].Procs != (Part{Share: 0.125}) || s.Faults[0].At != Duration(30*time.Second) {
		t.Errorf("%+v", s.Faults)
	}
	var values []float64
	for _, e := range s.Expect {
		values = append(values, e.Value)
	}
	if !slices.Equal(values, []float64{60.5, 0.1, 6, 1000.5, 0}) {
		t.Errorf("%v", values)
	}
}

// Faults come in the order of their times, those of one time as they were written; what was wrong with them is told
// where it was written.
func TestFaultsAreSorted(t *testing.T) {
	var kinds []string
	s := mustParse(t, ordinary+"at 30s flush\nat 10s kill for=1s\nat 30s scriptflush\nat 20s flush\n")
	for _, f := range s.Faults {
		kinds = append(kinds, fmt.Sprint(f.At, " ", f.Kind))
	}
	if want := []string{"10s kill", "20s flush", "30s flush", "30s scriptflush"}; !slices.Equal(kinds, want) {
		t.Errorf("%q, want %q", kinds, want)
	}
	s.Faults[0], s.Faults[3] = s.Faults[3], s.Faults[0]
	want := "faults[1].at is 20s: must not be before the fault that is listed before it, at 30s\n" +
		"faults[3].at is 10s: must not be before the fault that is listed before it, at 30s"
	if err := s.Validate(); err == nil || err.Error() != want {
		t.Errorf("said\n%v\nwant\n%s", err, want)
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	sorted, err := ParseJSON(data)
	if err != nil || sorted.Faults[0].Kind != "kill" {
		t.Errorf("%+v, %v", sorted, err)
	}
}

// What is empty in JSON is not there.
func TestEmptyArrays(t *testing.T) {
	data, err := json.Marshal(mustParse(t, ordinary))
	if err != nil {
		t.Fatal(err)
	}
	more := strings.TrimSuffix(string(data), "}") + `, "faults": [], "expect": [], "sometimes": [], "sweep": []}`
	s, err := ParseJSON([]byte(more))
	if err != nil || s.Faults != nil || s.Expect != nil || s.Sometimes != nil || s.Sweep != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

// A warm-up that is left out takes 2 s.
func TestDefaultWarmUp(t *testing.T) {
	text := strings.ReplaceAll(ordinary, " warmup=5s", "")
	mustParse(t, text+"at 2s flush\nexpect lost <= 5 after=2s\n")
	_, err := Parse(text + "at 1.999s flush\nexpect lost <= 5 after=1.999s\n")
	if want := "6:4: at is 1.999s: must not be before the warm-up ends, at 2s\n7:24: after is 1.999s: must be within what is measured, 2s to 1m"; err == nil || err.Error() != want {
		t.Errorf("said\n%v\nwant\n%s", err, want)
	}
}

// Numbers that no text can have.
func TestValidateNumbers(t *testing.T) {
	s := mustParse(t, ordinary+"at 10s cut procs=5% chance=5%\nexpect lost <= 5\nexpect detect <= 5s\n")
	s.Traffic[0].Rate, s.Traffic[0].KeySkew, s.Traffic[0].ProcSkew = math.Inf(1), math.NaN(), math.Inf(-1)
	s.Faults[0].Chance, s.Faults[0].Procs.Share = math.NaN(), math.NaN()
	s.Expect[0].Value, s.Expect[1].Value = math.NaN(), math.Inf(1)
	s.Length, s.Fleet.N = math.MinInt64, math.MinInt64
	s.Name, s.Learn = "\xff", strings.Repeat("é", 301)
	want := `name is "\xff": must be 1 to 100 printable characters
learn is "` + strings.Repeat("é", 40) + `"…: must be 0 to 300 printable characters
fleet.n is -9223372036854775808: must be 1 to 5000
traffic[0].rate is +Inf/s: must be 0.000001/s to 1000000000/s
traffic[0].keyskew is NaN: must be 0 to 10, or left out for 0, all alike
traffic[0].procskew is -Inf: must be 0 to 10, or left out for 0, all alike
run is -2562047h47m16.854775808s: must be 1s to 24h
faults[0].procs is NaN%: must be 1 to 5000 processes, or 0.0001% to 100% of them, or left out for all
faults[0].chance is NaN%: must be 0.0001% to 100%, or left out for 100%
expect[0].value is NaN: must be 0 to 1000000000000000, in tokens
expect[1].value is +Infs: must be 0s to 24h, in time`
	if err := s.Validate(); err == nil || err.Error() != want {
		t.Errorf("said\n%v\nwant\n%s", err, want)
	}
	if again := s.Validate(); again == nil || s.String() == "" {
		t.Error("it must print all the same")
	}
}

// What is too long is refused before anybody reads it, and what is not UTF-8 where that begins.
func TestTooMuch(t *testing.T) {
	axes := mustParse(t, ordinary+strings.Repeat("at 10s refuse error=OOM\n", 2))
	for i := range 2 { // maxCells
		a := Axis{Path: fmt.Sprintf("at.%d.error", i+1)}
		for j := range maxValues {
			a.Values = append(a.Values, fmt.Sprintf("E%d ", j)+strings.Repeat("x", 90))
		}
		axes.Sweep = append(axes.Sweep, a)
	}
	if err := axes.Validate(); err != nil {
		t.Fatal(err)
	}
	long := ordinary + strings.Repeat("#", maxBytes-len(ordinary))
	if _, err := Parse(long); err != nil {
		t.Error(err)
	}
	many := ordinary + strings.Repeat("\n", maxLines-strings.Count(ordinary, "\n"))
	if _, err := Parse(many); err != nil {
		t.Error(err)
	}
	for _, c := range []struct{ text, want string }{
		{long + "#", "1:1: the text is 65537 bytes long: must be at most 65536"},
		{many + "\n", "2001:1: the text is 2001 lines long: must be at most 2000"},
		{ordinary + "# é\xffé\n# \xc3", "6:4: the line is no UTF-8 from here: must be UTF-8\n7:3: the line is no UTF-8 from here: must be UTF-8"},
		{"\xff" + ordinary, "1:1: the line is no UTF-8 from here: must be UTF-8\n6:1: name is missing: must be 1 to 100 printable characters"},
		{ordinary + strings.Repeat("at 9s flush\n", maxFaults+1), "6:1: at is there 201 times: must be there at most 200 times"},
		{
			strings.Replace(ordinary, "burst=1000", "burst="+strings.Repeat("1", 500), 1),
			"2:31: burst is " + strings.Repeat("1", 40) + "…: must be a whole number, as in 50 or 1_000_000",
		},
		{ordinary + "at 9s " + strings.Repeat("x", 5000), "6:7: kind is " + strings.Repeat("x", 40) + "…: must be one of " + strings.Join(kindNames(Kinds), ", ")},
	} {
		if s, err := Parse(c.text); s != nil || err == nil || err.Error() != c.want {
			t.Errorf("%v\nsaid\n%v\nwant\n%s", s, err, c.want)
		}
	}
	for _, c := range []struct{ data, want string }{
		{strings.Repeat(" ", maxJSON+1), "the JSON is 524289 bytes long: must be at most 524288"},
		{strings.Repeat("[", 100_000), "the JSON is broken at byte "},
		{`{"x":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}", `unknown field "x"`},
		{`{"traffic":[` + strings.Repeat("{},", 100_000) + "{}]}", "traffic is there 100001 times: must be there at most 20 times"},
		{`{"sometimes":[` + strings.Repeat(`"",`, 100_000) + `""]}`, "sometimes is there 100001 times: must be there at most 22 times"},
	} {
		if s, err := ParseJSON([]byte(c.data)); s != nil || err == nil || !strings.Contains(err.Error(), c.want) || strings.Count(err.Error(), "\n") > 10 {
			t.Errorf("%v\nsaid\n%v\nwant\n%s", s, err, c.want)
		}
	}
}

// A scenario that has no text that could be read again is not valid, wherever it came from.
func TestTextTooLong(t *testing.T) {
	s := mustParse(t, ordinary+strings.Repeat("at 10s refuse error=OOM\n", maxFaults))
	for i := range s.Faults {
		s.Faults[i].Error = "E" + strings.Repeat(`\`, 99) // twice as long in quotes
	}
	if err := s.Validate(); err != nil {
		t.Fatalf("%v, at %d bytes", err, len(s.String()))
	}
	for i, path := range []string{"at.1.error", "at.2.error"} {
		s.Sweep = append(s.Sweep, Axis{Path: path})
		for j := range maxValues {
			s.Sweep[i].Values = append(s.Sweep[i].Values, fmt.Sprintf("E%d", j)+strings.Repeat(`\`, 90))
		}
	}
	want := fmt.Sprintf("the scenario is %d bytes of text: must be at most 65536", len(s.String()))
	if err := s.Validate(); err == nil || err.Error() != want {
		t.Errorf("said %v, want %s", err, want)
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseJSON(data); err == nil || err.Error() != want {
		t.Errorf("said %v, want %s", err, want)
	}
	text := ordinary + strings.Repeat("at 10s refuse error=E"+strings.Repeat(`\`, 90)+"\n", maxFaults) // without quotes
	for i, a := range s.Sweep {
		text += fmt.Sprintf("sweep at.%d.error=%s\n", i+1, strings.Join(a.Values, ","))
	}
	if _, err := Parse(text); len(text) > maxBytes-1000 || err == nil || !strings.HasPrefix(err.Error(), "1:1: the scenario is ") {
		t.Errorf("%d bytes: %v", len(text), err)
	}
}

// Each error is there for errors.As, and the vocabulary is not said twice.
func TestErrorsAreErrors(t *testing.T) {
	_, err := Parse("nonsense\n")
	var one *Error
	if !errors.As(err, &one) || one.Line != 1 || one.Column != 1 || !errors.Is(err, one) {
		t.Errorf("%v: %+v", err, one)
	}
	for what, list := range map[string][]string{
		"kinds": kindNames(Kinds), "shapes": kindNames(Shapes), "metrics": metricNames(), "happenings": Happenings,
		"faults' fields": tags(reflect.TypeFor[Fault]()), "traffic's fields": tags(reflect.TypeFor[Traffic]()),
	} {
		sorted := slices.Sorted(slices.Values(list))
		if len(slices.Compact(sorted)) != len(list) {
			t.Errorf("%s: one is there twice: %q", what, list)
		}
	}
	for i := range statements {
		st := &statements[i]
		for _, k := range st.kinds {
			item := reflect.New(member(&Scenario{}, st.path).Type().Elem()).Interface()
			member(item, st.words[len(st.words)-1].path).SetString(k.Name)
			_, takes, needs, _ := st.takes(item)
			for _, p := range append(takes, needs...) {
				if st.field(p) == nil || !slices.Contains(takes, p) {
					t.Errorf("%s takes %s, which is no parameter", k.Name, p)
				}
			}
		}
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct{ word, want string }{
		{"blakhole", "blackhole"},
		{"blackohle", "blackhole"},
		{"BLACKHOLE", "blackhole"},
		{"blckhle", "blackhole"},
		{"blchle", ""},
		{"klil", "kill"},
		{"kiln", "kill"},
		{"bull", ""},
		{"up", "ip"},
		{"x", ""},
		{"", ""},
		{strings.Repeat("x", 1000), ""},
	} {
		if got := Nearest(c.word, []string{"kill", "blackhole", "ip"}); got != c.want {
			t.Errorf("%.20s: %q, want %q", c.word, got, c.want)
		}
	}
}
