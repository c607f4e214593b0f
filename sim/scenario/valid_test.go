package scenario

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
)

// a value of the type of an example; often a small or a round one.
func draw(t *rapid.T, f *field, example any) any {
	number := func(label string) float64 {
		v := rapid.OneOf(rapid.Float64Range(0, 1), rapid.Float64Range(0, maxRate)).Draw(t, label)
		if digits := math.Pow10(rapid.IntRange(0, 4).Draw(t, label+" digits")); rapid.Bool().Draw(t, label+" round") {
			v = math.Round(v*digits) / digits
		}
		return v
	}
	whole := rapid.OneOf(rapid.Int64(), rapid.Int64Range(-1, 20), rapid.Int64Range(0, maxTokens))
	switch example.(type) {
	case int64:
		return whole.Draw(t, f.name)
	case float64:
		return number(f.name)
	case Duration:
		grain := rapid.SampledFrom([]int64{1, 1000, 1e6, 1e9, 60e9}).Draw(t, f.name+" grain")
		return Duration(rapid.Int64Range(-100, int64(maxLength)/grain).Draw(t, f.name) * grain)
	case Part:
		if rapid.Bool().Draw(t, "a share") {
			return Part{Share: number(f.name)}
		}
		return Part{Count: rapid.IntRange(1, 9999).Draw(t, f.name)}
	case rate:
		return rate{whole.Draw(t, f.name), micro * Duration(rapid.Int64Range(1, int64(hour)).Draw(t, "period"))}
	}
	if f.words != nil {
		return rapid.SampledFrom(f.words).Draw(t, f.name)
	}
	return rapid.OneOf(rapid.StringOfN(rapid.RuneFrom([]rune(`abc XYZ 09_-"\#=,'/<&>é世界…ﬃ:{}[]%@`)), 1, 64, -1),
		rapid.StringMatching(`[A-Z][A-Z0-9]{0,10}( [ -~]{0,80})?`), rapid.StringMatching(`[A-Za-z0-9_.-]{1,64}`),
		rapid.SampledFrom([]string{"null", "NULL", "5", "true", "off", "- a", "<<"})).Draw(t, f.name)
}

// fill sets some of the fields that an item takes to values that they may have.
func fill(t *rapid.T, m *mapping, item any) {
	if m.by != "" {
		member(item, m.by).SetString(rapid.SampledFrom(kindNames(m.kinds)).Draw(t, m.by))
	}
	_, takes, needs := m.takes(m.kindOf(item))
	for _, name := range takes {
		f := m.field(name)
		must := strings.Contains(" "+strings.Join(needs, " ")+" ", " "+name+" ")
		if name == m.by || !must && rapid.Bool().Draw(t, name+" left out") {
			continue
		}
		for tries := 0; tries < 1000; tries++ {
			if v := draw(t, f, f.get(item)); f.has(v) && !(must && isZero(v)) {
				f.set(item, v)
				break
			}
		}
	}
}

// Whatever the fields may have is read as it was written.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Scenario{}
		for i := range mappings {
			m := &mappings[i]
			for range rapid.IntRange(1, max(1, min(m.most, 3))).Draw(t, "of "+m.path) {
				item := any(s)
				if m.path != "" {
					item = m.add(s)
				}
				fill(t, m, item)
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "expectations") {
			m := rapid.SampledFrom(Metrics).Draw(t, "metric")
			e := Expectation{Metric: m.Name, Op: rapid.SampledFrom([]string{"<=", ">="}).Draw(t, "op")}
			fill(t, &expectations, &e)
			e.Value = rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1), rapid.Float64Range(0, 86400)).Draw(t, "value")
			if m.Unit == Seconds {
				e.Value = math.Round(e.Value*1e9) / 1e9
			}
			s.Expect = append(s.Expect, e)
		}
		if rapid.Bool().Draw(t, "more") {
			s.Sometimes = []string{"waited", "shared"}
			s.Sweep = []Axis{{"faults.error", []string{"NULL", `ERR say "#1, 2=3"`, "", "5"}}, {"net.rtt", []string{"1ms"}}}
		}
		text := "\ufeff" + strings.ReplaceAll(s.String(), "\n", " # so \r\n\n")
		root, err := strictyaml.Document("", []byte(text), MaxBytes, "")
		if err != nil {
			t.Fatalf("%v\nof\n%s", err, text)
		}
		r := newReader("")
		if got := r.scenario(root); r.Err() != nil || !reflect.DeepEqual(got, s) {
			t.Fatalf("%v: %+v\nfrom\n%s\nwas\n%+v", r.Err(), got, text, s)
		}
	})
}
