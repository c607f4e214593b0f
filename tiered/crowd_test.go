package tiered

import (
	"testing"
	"time"
)

// A fleet gives its shares up when there are too many processes for longer than a deploy takes, and
// comes back to them with half as many.
func TestCrowd(t *testing.T) {
	const most = 10
	var c crowd
	for i, step := range []struct {
		at          int // s
		members     int64
		is, changed bool
		changes     bool
	}{
		{at: 1, members: 10},
		{at: 2, members: 11, changes: true},
		{at: 31, members: 12, changes: true},
		{at: 31, members: 10}, // a deploy that was over in time
		{at: 33, members: 11, changes: true},
		{at: 62, members: 11, changes: true},
		{at: 63, members: 11, is: true, changed: true, changes: true},
		{at: 64, members: 30, is: true, changes: true},
		{at: 65, members: 10, is: true},
		{at: 66, members: 6, is: true},
		{at: 67, members: 5, changed: true, changes: true},
		{at: 96, members: 5, changes: true},
		{at: 97, members: 5},
		{at: 98, members: 10},
	} {
		now := time.Duration(step.at) * time.Second
		if changed := c.count(now, step.members, most); changed != step.changed || c.is != step.is || c.changes(now) != step.changes {
			t.Errorf("step %d: %d of %d processes at %v: changed %v, %+v", i, step.members, most, now, changed, c)
		}
	}
}
