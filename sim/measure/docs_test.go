package measure_test

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

// TestDocs holds sim/report.md against the types: a section per type, a row per field, in order.
func TestDocs(t *testing.T) {
	page := fatal.Get(os.ReadFile("../report.md"))(t)
	sections := map[string][]string{}
	var section string
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
		}
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.HasPrefix(cells[1], " `") {
			sections[section] = append(sections[section], code(cells[1]))
		}
	}
	for _, x := range []any{
		measure.Report{}, measure.Phase{}, measure.Metrics{}, measure.Outcome{}, measure.Happening{}, measure.FaultSpan{}, measure.Series{}, measure.Sweep{}, measure.Cell{},
	} {
		typ := reflect.TypeOf(x)
		var fields []string
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name != "-" {
				fields = append(fields, name)
			}
		}
		if documented := sections[typ.Name()]; !slices.Equal(documented, fields) {
			t.Errorf("## %s documents\n%q\nthe type has\n%q", typ.Name(), documented, fields)
		}
		delete(sections, typ.Name())
	}
	for name := range sections {
		t.Errorf("## %s is of no type", name)
	}
	if !strings.Contains(string(page), fmt.Sprintf("`schema` is %d.", measure.Schema)) {
		t.Errorf("the page is not about schema %d", measure.Schema)
	}
}

// code is what a cell has in backquotes.
func code(cell string) string { return strings.Trim(strings.TrimSpace(cell), "`") }
