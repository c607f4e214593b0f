package rehearsal_test

import (
	"bytes"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
	"github.com/tiered-limiter/tiered-limiter/sim/picture/internal/rehearsal"
)

// A made-up report is one that could be: it can be read back, of a valid scenario, and its books balance.
func TestReport(t *testing.T) {
	r := rehearsal.Report(rehearsal.Usual)
	if err := r.Scenario.Validate(); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := measure.Read(&b); err != nil {
		t.Error(err)
	}
	l := r.Ledger
	if gap := l.Granted - l.Spent - l.Returned - l.Burnt - l.Held - l.Lost; gap < 0 || gap > 5 { // each is rounded down
		t.Errorf("%d tokens of the ledger are nowhere: %+v", gap, l)
	}
	s := rehearsal.Sweep(1)
	if err := s.Scenario.Validate(); err != nil {
		t.Error(err)
	}
}
