package report_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/report"
)

// A series of equal events is one entry with its number and its last time, and the oldest entries
// leave.
func TestRecentIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r report.Recent
		for i, e := range []report.Event{
			{What: "open", Node: "a", Class: "unreachable"},
			{What: "open", Node: "a", Class: "saturated"},
			{What: "loss", Node: "a"},
			{What: "loss", Node: "a", By: 3},
			{What: "loss", Node: "b"},
			{What: "loss", Node: "a"},
		} {
			time.Sleep(time.Second)
			e.Count = int64(i) // which Add knows better
			r.Add(e)
		}
		var got []string
		for _, e := range r.List() {
			got = append(got, fmt.Sprint(e.What, " ", e.Node, " ", e.Class, " ", int64(e.By), " ", e.Count, " ", time.Since(e.At)))
		}
		want := []string{
			"open a unreachable 0 1 5s", "open a saturated 0 1 4s", "loss a  3 2 2s", "loss b  0 1 1s", "loss a  0 1 0s",
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		for i := range 1000 {
			r.Add(report.Event{What: "step", Node: fmt.Sprint(i)})
		}
		all := r.List()
		if len(all) != report.RecentEvents || all[len(all)-1].Node != "999" || r.Room() > 2*report.RecentEvents {
			t.Errorf("%d events of %d, the last of %s", len(all), r.Room(), all[len(all)-1].Node)
		}
	})
}
