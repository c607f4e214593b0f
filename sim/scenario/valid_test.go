package scenario

import (
	"math"
	"reflect"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/strictyaml"
	"github.com/tiered-limiter/tiered-limiter/tiered"
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
	case tiered.Limit:
		period := time.Duration(micro) * time.Duration(rapid.Int64Range(1, int64(hour)).Draw(t, "period"))
		l := tiered.Per(whole.Draw(t, f.name), period)
		return rapid.SampledFrom([]tiered.Limit{
			l, l.And(tiered.PerDay(7).WithBurst(3)), tiered.PerMonth(7).In("Asia/Tokyo").From(17), tiered.PerDay(7).In("UTC"),
		}).Draw(t, "limit")
	case time.Time:
		return time.Unix(0, rapid.Int64Range(0, firstStart.AddDate(101, 0, 0).UnixNano()).Draw(t, f.name)).UTC()
	}
	if f.words != nil {
		return rapid.SampledFrom(f.words).Draw(t, f.name)
	}
	return rapid.OneOf(rapid.StringOfN(rapid.RuneFrom([]rune(`abc XYZ 09_-"\#=,'/<&>é世界…ﬃ:{}[]%@`)), 1, 64, -1),
		rapid.StringMatching(`[A-Z][A-Z0-9]{0,10}( [ -~]{0,80})?`), rapid.StringMatching(`[A-Za-z0-9_.-]{1,64}`),
		rapid.SampledFrom([]string{"null", "NULL", "5", "true", "off", "- a", "<<"})).Draw(t, f.name)
}

// Each value that a field may have is read as it was written, and so is that of an expectation.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for i := range mappings {
			m := &mappings[i]
			for j := range m.fields {
				f, item, again := &m.fields[j], m.add(&Scenario{}), m.add(&Scenario{})
				v := draw(t, f, f.get(item))
				if !f.has(v) || isZero(v) {
					continue
				}
				f.set(item, v)
				text, err := yaml.Marshal(m.node(item))
				if err != nil {
					t.Fatalf("%#v: %v", v, err)
				}
				root, err := strictyaml.Document("", text, MaxBytes, "")
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				if rule := f.read(again, root.Content[1].Value); rule != "" || !reflect.DeepEqual(again, item) {
					t.Fatalf("%#v is written as %s: %s: read as %+v", v, text, rule, again)
				}
			}
		}
		for _, u := range units {
			v := rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1), rapid.Float64Range(0, 86400)).Draw(t, "value")
			if u.name == Seconds.String() {
				v = math.Round(v*1e9) / 1e9
			}
			if again, rule := u.read(u.format(v)); again != v {
				t.Fatalf("%v %s are written as %s: %s: read as %v", v, u.name, u.format(v), rule, again)
			}
		}
	})
}
