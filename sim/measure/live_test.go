package measure

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// What nobody sees in a run of real processes is not held against it, and a time may be longer by what the machine
// did. All else is as ever.
func TestLive(t *testing.T) {
	played := func(live bool) *Report {
		m := New(made(
			expecting("lost", "<=", 0, 0, 0), expecting("decide_max", "<=", .02, 0, 0), expecting("over_admission", "<=", 100, 0, 0),
			func(x *scenario.Scenario) { x.Sometimes = []string{"lease_lost", "late_call"} },
		))
		m.Decided(s+100*ms, m.Asked(s, 0, 0, "k", 1), granted)
		if live {
			m.Live(80 * ms)
		}
		return m.Report(30 * s)
	}
	r := played(false)
	want(t, "in a bubble", r.Passed, false)
	want(t, "lost in a bubble", r.Expectations[0].Unseen, false)
	want(t, "late in a bubble", r.Expectations[1].Passed, false)

	r = played(true)
	r.Engine = "live"
	want(t, "passed", r.Passed, true)
	want(t, "lost", r.Expectations[0], Outcome{Text: "lost <= 0", Value: -1, Unseen: true})
	want(t, "late by the machine", r.Expectations[1].Passed, true)
	want(t, "unseed", r.Unseed, "")
	near(t, "lag", r.LagMs, 80)
	for _, h := range r.Sometimes {
		if h.Wanted != h.Unseen {
			t.Errorf("%+v", h)
		}
	}
	var b bytes.Buffer
	if err := r.Text(&b, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"-     lost <= 0", "-     sometimes late_call: not seen by this engine", "held processes up for up to 80ms", "no two are equal"} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("the text has no %q:\n%s", part, b.String())
		}
	}

	m := New(made(expecting("decide_max", "<=", .02, 0, 0)))
	m.Decided(s+101*ms, m.Asked(s, 0, 0, "k", 1), granted)
	m.Live(80 * ms)
	want(t, "late by more than that", m.Report(30*s).Passed, false)
}
