package report

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A series of equal events is one entry with its number and its last time, and the oldest entries leave.
func TestRecentIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Recent
		for i, e := range []Event{
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
			r.Add(Event{What: "step", Node: fmt.Sprint(i)})
		}
		all := r.List()
		if len(all) != recentEvents || all[len(all)-1].Node != "999" || cap(r.events) > 2*recentEvents {
			t.Errorf("%d events of %d, the last of %s", len(all), cap(r.events), all[len(all)-1].Node)
		}
	})
}
