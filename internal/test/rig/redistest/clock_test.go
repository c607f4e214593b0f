package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// A server has the time that SetClock says, also parts of a second, and the commands that it
// executes see it.
func TestClock(t *testing.T) {
	s := redistest.StartWithClock(t)
	admin := s.Client()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 1500 * time.Millisecond, -700 * time.Millisecond} {
		s.SetClock(ahead)
		before := time.Now().Truncate(time.Microsecond)
		now, err := admin.Time(context.Background()).Result()
		if after := time.Now(); err != nil || now.Before(before.Add(ahead)) || now.After(after.Add(ahead)) {
			t.Errorf("%v ahead: it is %v, between %v and %v, %v", ahead, now, before.Add(ahead), after.Add(ahead), err)
		}
	}
}
