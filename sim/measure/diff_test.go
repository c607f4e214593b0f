package measure

import (
	"strings"
	"testing"
)

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *Report)
		want   string // in order, each in a line
	}{
		{"none", func(*Report) {}, ""},
		{"within 5 %", func(r *Report) {
			r.Metrics.Offered += 29 // 5 % of 589 are 29
			r.Metrics.Heal *= 1.05
		}, ""},
		{"beyond it", func(r *Report) {
			r.Metrics.Offered += 40
			r.Metrics.OverAdmission += 11
			r.Phases[1].Metrics.Detect += 20
			r.Limits["api"] = Metrics{Offered: r.Limits["api"].Offered}
		}, "all: offered: 560, 600\nall: over_admission: 115, 126\nduring: detect: 300ms, 320ms\nlimit api: admitted: 395, 0"},
		{"not known", func(r *Report) { r.Metrics.Heal = -1 }, "all: heal: 700ms, -"},
		{"the verdict", func(r *Report) {
			r.Passed = true
			r.Expectations[0].Passed = !r.Expectations[0].Passed
			r.Sometimes[0].Count = 0
		}, "report: passed: FAIL, PASS\nexpectations: over_admission <= 100: FAIL, PASS\n" +
			"sometimes: breaker_open: happened, did not happen"},
		{"the unseed of one seed", func(r *Report) { r.Unseed = "0000000000000000" }, "report: unseed: "},
		{"the unseed of another seed", func(r *Report) { r.Unseed, r.Seed = "0000000000000000", 8 }, ""},
		{"phases", func(r *Report) { r.Phases = r.Phases[1:] }, "report: phases: before during after, during after"},
		{"limits", func(r *Report) { r.Limits = map[string]Metrics{"b": {}} }, "report: limits: [api], [b]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := rehearsed(), rehearsed()
			c.change(b)
			lines := Diff(a, b, 0.05)
			got := strings.Join(lines, "\n")
			if (c.want == "") != (got == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			want(t, "the other way", len(Diff(b, a, 0.05)), len(lines))
		})
	}
	a, b := rehearsed(), rehearsed()
	b.Metrics.Offered++
	want(t, "exactly", len(Diff(a, b, 0)), 1)
}
