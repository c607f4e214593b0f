package redistest

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A server has the time that its Clock says, also parts of a second, and the commands that it executes see it.
func TestClock(t *testing.T) {
	c, err := NewClock(t)
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	s := StartOpenEnv(t, c.Env())
	admin := s.Client()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour, 1500 * time.Millisecond, -700 * time.Millisecond} {
		if err := c.Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Truncate(time.Microsecond)
		now, err := admin.Time(context.Background()).Result()
		if after := time.Now(); err != nil || now.Before(before.Add(ahead)) || now.After(after.Add(ahead)) {
			t.Errorf("%v ahead: it is %v, between %v and %v, %v", ahead, now, before.Add(ahead), after.Add(ahead), err)
		}
	}
}
