package measure_test

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
)

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *measure.Report)
		want   string // in order, each in a line
	}{
		{"none", func(*measure.Report) {}, ""},
		{"within 5 %", func(r *measure.Report) {
			r.Metrics.Offered += 29 // 5 % of 589 are 29
			r.Metrics.Heal *= 1.05
		}, ""},
		{"beyond it", func(r *measure.Report) {
			r.Metrics.Offered += 40
			r.Metrics.OverAdmission += 11
			r.Phases[1].Metrics.Detect += 0.02
			r.Limits["api"] = measure.Metrics{Offered: r.Limits["api"].Offered}
		}, "limits.api.admitted: 395, 0\nlimits.api.alone: 212, 0\n"},
		{"not known", func(r *measure.Report) { r.Metrics.Heal = -1 }, "metrics.heal: 0.7, -"},
		{"the verdict", func(r *measure.Report) {
			r.Passed = true
			r.Expectations[0].Passed = true
			r.Sometimes[0].Count = 0
		}, "expectations.over_admission <= 100.passed: false, true\npassed: false, true\nsometimes.breaker_open.count: 2, 0"},
		{"the unseed of one seed", func(r *measure.Report) { r.Unseed = "0000000000000000" }, "unseed: "},
		{"the unseed of another seed", func(r *measure.Report) { r.Unseed, r.Seed = "0000000000000000", 8 }, ""},
		{"phases", func(r *measure.Report) { r.Phases = r.Phases[1:] }, "phases.before.from_s: 2, -\n"},
		{
			"limits", func(r *measure.Report) { r.Limits = map[string]measure.Metrics{"b": {}} },
			"limits.api.admitted: 395, -\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := rehearsed(), rehearsed()
			c.change(b)
			lines := measure.Diff(a, b, 0.05)
			got := strings.Join(lines, "\n")
			if (c.want == "") != (got == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			want(t, "the other way", len(measure.Diff(b, a, 0.05)), len(lines))
		})
	}
	a, b := rehearsed(), rehearsed()
	b.Metrics.Offered++
	want(t, "exactly", len(measure.Diff(a, b, 0)), 1)
}
