package measure

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// A sentence says who was refused, how many tokens were too many, and when all was normal again.
func TestSentences(t *testing.T) {
	within := map[string]Metrics{
		"api":   {Offered: 100, Ideal: 60, DeniedWithin: 0.3}, // asked for more than there is: any limiter refuses some of it
		"users": {Offered: 10, Ideal: 10},
	}
	refused := map[string]Metrics{"users": {Offered: 10, Ideal: 10, DeniedWithin: 0.013}}
	fault, after := []FaultSpan{{"at 10s kill", 10, 20}}, []Phase{{Name: "after"}}
	mode := func(mode string) *scenario.Scenario {
		return &scenario.Scenario{Fleet: scenario.Fleet{Mode: mode}, Limits: []scenario.Limit{{Name: "api"}, {Name: "users"}}}
	}
	for _, c := range []struct {
		report Report
		want   string
	}{
		{
			Report{Faults: fault, Limits: within, Metrics: Metrics{OverAdmission: 159.7, Recovered: 1200}},
			"fail-local: nobody within the limit refused, 160 tokens too many, normal again after 1.2 s\n",
		},
		{
			Report{Scenario: mode("closed"), Faults: fault, Limits: refused, Metrics: Metrics{OverAdmission: 0.2}},
			"fail-closed: 1.3 % of the requests within the limit refused, no token too many, normal again at once\n",
		},
		{
			Report{
				Scenario: mode("open"), FailModes: map[string]string{"users": "closed"}, Faults: fault, Phases: after,
				Metrics: Metrics{OverAdmission: 1, Shortfall: 0.05, Recovered: -1},
			},
			"fail-open and fail-closed: 5 % of what the limit allows refused, 1 token too many, not normal again before the end\n",
		},
		{
			Report{Faults: fault, Metrics: Metrics{Shortfall: -1, Recovered: -1}},
			"fail-local: no token too many, the fault lasts to the end\n",
		},
		{
			Report{Faults: fault, Metrics: Metrics{}},
			"fail-local: nothing refused that the limit allows, no token too many, normal again at once\n",
		},
		{Report{Limits: within}, ""},
	} {
		var b strings.Builder
		if err := sentences(&b, []string{"x"}, []*Report{&c.report}); err != nil {
			t.Fatal(err)
		}
		want(t, "sentence", b.String(), c.want)
	}
	// Two runs of one fail mode have their names; nothing in a name moves a cursor.
	local, open := &Report{Faults: fault}, &Report{Scenario: mode("open"), Faults: fault}
	var b strings.Builder
	if err := sentences(&b, []string{"a\x1b", "b", "c"}, []*Report{local, local, open}); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		if begins := []string{`"a\x1b", fail-local: `, "b, fail-local: ", "fail-open: "}[i]; !strings.HasPrefix(line, begins) {
			t.Errorf("%q begins not with %q", line, begins)
		}
	}
}
