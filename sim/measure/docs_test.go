package measure

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// TestDocs holds sim/report.md against the types: a section per type, a row per field, in order.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../report.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string][]row{}
	var section string
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		if cells := strings.Split(line, "|"); len(cells) > 3 && strings.HasPrefix(cells[1], " `") {
			sections[section] = append(sections[section], row{code(cells[1]), code(cells[2])})
		}
	}
	for _, x := range []any{
		Report{}, Phase{}, Metrics{}, Outcome{}, Happening{}, FaultSpan{}, Series{}, Sweep{}, Cell{},
	} {
		typ := reflect.TypeOf(x)
		var fields, documented []string
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			fields = append(fields, name)
		}
		for _, r := range sections[typ.Name()] {
			documented = append(documented, r.field)
		}
		if !slices.Equal(documented, fields) {
			t.Errorf("## %s documents\n%q\nthe type has\n%q", typ.Name(), documented, fields)
		}
		delete(sections, typ.Name())
	}
	for name := range sections {
		t.Errorf("## %s is of no type", name)
	}
	if !strings.Contains(string(page), fmt.Sprintf("`schema` is %d.", Schema)) {
		t.Errorf("the page is not about schema %d", Schema)
	}
}

// TestDocsOfMetrics: the name that an expectation has is that of its field.
func TestDocsOfMetrics(t *testing.T) {
	page, err := os.ReadFile("../report.md")
	if err != nil {
		t.Fatal(err)
	}
	typ := reflect.TypeFor[Metrics]()
	named := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[2], " `") || strings.Contains(cells[2], "expect") {
			continue
		}
		named++
		var x Metrics
		for i := range typ.NumField() {
			if typ.Field(i).Tag.Get("json") == code(cells[1]) {
				f := reflect.ValueOf(&x).Elem().Field(i)
				f.Set(reflect.ValueOf(7).Convert(f.Type()))
			}
		}
		if x.Value(code(cells[2])) <= 0 {
			t.Errorf("%s is not of%s", cells[2], cells[1])
		}
	}
	want(t, "metrics", named, len(scenario.Metrics))
}

// row is one of a table.
type row struct{ field, metric string }

// code is what a cell has in backquotes.
func code(cell string) string {
	return strings.Trim(strings.TrimSpace(cell), "`")
}
