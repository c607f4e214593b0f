package report_test

import (
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// Absence is reported after two failures in a row, after four of a node that has never answered,
// and once until it ends.
func TestAbsenceIsReportedOnce(t *testing.T) {
	for _, c := range []struct{ refreshes, want string }{ // a: answered, s: silent, f: failed otherwise
		{"aasasa", "......"},
		{"assssas", "..A..B."},
		{"ssssssa", "...A..B"},
		{"sfs", ".A."},
		{"affa", "..AB"},
		{"ffaff", ".AB.A"},
	} {
		var p report.Presence
		var got strings.Builder
		for _, r := range c.refreshes {
			switch {
			case r == 'a' && p.Refreshed():
				got.WriteByte('B') // back
			case r != 'a' && p.Missed(r == 's'):
				got.WriteByte('A') // absent
			default:
				got.WriteByte('.')
			}
		}
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.refreshes, got.String(), c.want)
		}
	}
}
