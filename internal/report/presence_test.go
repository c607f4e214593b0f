package report_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// Absence is reported after two failures in a row, after four of a node that has never answered, and once until it ends.
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

// A line is written at the beginning of an outage, and when two failures in a row have another cause than the last line.
func TestCausesThatAreNews(t *testing.T) {
	var c report.Causes
	u, m := failover.Unreachable, failover.Misconfigured
	var news []int
	for i, f := range []struct {
		class  failover.Class
		begins bool
	}{{u, true}, {u, false}, {m, false}, {u, false}, {m, false}, {m, false}, {m, false}, {u, false}, {u, false}, {u, true}} {
		if c.IsNews(f.class, f.begins) {
			news = append(news, i)
		}
	}
	if want := []int{0, 5, 8, 9}; !slices.Equal(news, want) {
		t.Error(fmt.Sprint(news, ", want ", want))
	}
}
