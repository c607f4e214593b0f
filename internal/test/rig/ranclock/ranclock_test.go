package ranclock

import (
	"testing"
	"testing/synctest"
	"time"
)

// A process that runs has all of the time, and one that stood still for an hour has lost the hour.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(t)
		begun := c.Now()
		time.Sleep(time.Second)
		if ran := c.Since(begun); ran != time.Second {
			t.Errorf("%v of 1 s", ran)
		}
		begun = c.Now()
		c.last = c.last.Add(-time.Hour) // the last look was an hour ago
		if ran := c.Since(begun); ran != most {
			t.Errorf("%v of an hour that it did not run, want at most %v", ran, most)
		}
	})
}
