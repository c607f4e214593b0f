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

// TestDocs holds sim/report.md against the type: a row per metric, in order.
func TestDocs(t *testing.T) {
	page := fatal.Get(os.ReadFile("../report.md"))(t)
	var documented, fields []string
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, "|"); len(cells) > 2 && strings.HasPrefix(cells[1], " `") {
			documented = append(documented, code(cells[1]))
		}
	}
	for field := range reflect.TypeFor[measure.Metrics]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		fields = append(fields, name)
	}
	if !slices.Equal(documented, fields) {
		t.Errorf("the page documents\n%q\nthe type has\n%q", documented, fields)
	}
	if !strings.Contains(string(page), fmt.Sprintf("`schema` is %d.", measure.Schema)) {
		t.Errorf("the page is not about schema %d", measure.Schema)
	}
}

// code is what a cell has in backquotes.
func code(cell string) string { return strings.Trim(strings.TrimSpace(cell), "`") }
