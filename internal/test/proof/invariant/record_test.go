package invariant_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Every text that is a record or terms is read as the numbers that it says, and no other is.
func TestRecordsAndTerms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := lua.Record{
			Seq: rapid.Int64Range(0, lua.Whole-1).Draw(t, "seq"), Grant: rapid.Int64Range(0, lua.Whole-1).Draw(t, "grant"), Out: rapid.Int64Range(0, lua.Whole-1).Draw(t, "out"), Want: rapid.Int64Range(0, lua.Whole-1).Draw(t, "want"),
			End: rapid.Int64Range(0, lua.Whole-1).Draw(t, "end"), Debt: rapid.Int64Range(0, lua.Whole-1).Draw(t, "debt"),
		}
		if got, ok := invariant.ParseRecord(r.String()); !ok || got != r {
			t.Fatalf("%v is read as %+v, %t", r, got, ok)
		}
	})
	for _, text := range []string{"", "1|2|3|4|5", "1|2|3|4|5|6|7", "1|2|3|4|5|x", "1|2|3|4|5|-6", "1|2|3|4|5|9007199254740992"} {
		if r, ok := invariant.ParseRecord(text); ok {
			t.Errorf("%q is read as %+v", text, r)
		}
	}
	for text, want := range map[string]invariant.Terms{
		"5/1/1000": {5, 1, 1000, 5}, "5/0/1/9": {5, 0, 1, 9},
		"": {}, "5/1": {}, "5/1/0": {}, "5/1/1000/5": {}, "5/1/1000/4": {}, "5/1/x": {}, "-5/1/1": {}, "5/1/1/9/9": {},
	} {
		if got, ok := invariant.ParseTerms(text); got != want || ok != (want != invariant.Terms{}) {
			t.Errorf("%q is read as %+v, %t", text, got, ok)
		}
	}
}
