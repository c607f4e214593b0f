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
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// TestDocs holds sim/report.md against the type: it names the fields of Metrics that tiersim does
// not print with the metrics.
func TestDocs(t *testing.T) {
	page := fatal.Get(os.ReadFile("../report.md"))(t)
	for field := range reflect.TypeFor[measure.Metrics]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		printed := slices.ContainsFunc(scenario.Metrics, func(m scenario.Metric) bool { return m.Name == name })
		if !printed && !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("the page does not document %s", name)
		}
	}
	if !strings.Contains(string(page), fmt.Sprintf("`schema` is %d.", measure.Schema)) {
		t.Errorf("the page is not about schema %d", measure.Schema)
	}
}
