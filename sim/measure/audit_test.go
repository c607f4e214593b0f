package measure

import (
	"strings"
	"testing"
)

// A run in which both sides did not agree has not passed; one that nobody could see may.
func TestAuditDecides(t *testing.T) {
	for _, c := range []struct {
		audit Audit
		want  bool
		says  string
	}{
		{Audit{Looks: 9}, true, "PASS  audit: 9 looks"},
		{Audit{Looks: 9, Broken: 2, Excess: 1.5, First: "1s process 3: why"}, false, "FAIL  audit: broken at 2 of 9 looks, by up to 1.5 tokens\n      first at 1s process 3: why\n"},
		{Audit{-1, -1, -1, ""}, true, "-     audit: not seen by this engine"},
	} {
		r := &Report{Passed: true}
		if r.Audited(c.audit); r.Passed != c.want || r.Audit != c.audit {
			t.Errorf("%+v: passed %v", r.Audit, r.Passed)
		}
		if text := r.String(); !strings.Contains(text, c.says) {
			t.Errorf("%+v says not %q:\n%s", c.audit, c.says, text)
		}
		r = &Report{}
		if r.Audited(c.audit); r.Passed {
			t.Errorf("%+v mends a run that has not passed", c.audit)
		}
	}
}
