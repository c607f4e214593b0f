package measure

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
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
		Report{}, Phase{}, Metrics{}, Outcome{}, Happening{}, FaultSpan{}, Series{}, BreakerStrip{}, BreakerChange{}, Ledger{}, Audit{}, Sweep{}, Cell{}, Policy{}, Expected{},
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
	if !strings.Contains(string(page), "`schema` is 1.") || Schema != 1 {
		t.Errorf("the page is about schema 1, the code about %d", Schema)
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
		r, ok := readers[code(cells[2])]
		if !ok {
			t.Errorf("%s is no metric", cells[2])
			continue
		}
		var x Metrics
		for i := range typ.NumField() {
			if typ.Field(i).Tag.Get("json") == code(cells[1]) {
				f := reflect.ValueOf(&x).Elem().Field(i)
				f.Set(reflect.ValueOf(7).Convert(f.Type()))
			}
		}
		want(t, cells[2]+" is of"+cells[1], r.get(&x), 7)
	}
	want(t, "metrics", named, len(readers))
}

// row is one of a table.
type row struct{ field, metric string }

// code is what a cell has in backquotes.
func code(cell string) string {
	return strings.Trim(strings.TrimSpace(cell), "`")
}
