package remote_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

func TestMemoryListsItsBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := remote.NewMemory()
		for _, b := range []string{"b", "a", "c"} {
			if _, err := memoryTake(m, b, 1); err != nil {
				t.Fatal(err)
			}
		}
		m.Del("a")
		all := m.Buckets()
		if slices.Sort(all); !slices.Equal(all, []string{"b", "c"}) {
			t.Errorf("buckets %q", all)
		}
		time.Sleep(time.Hour) // full long ago: they have expired, and nobody has come by to collect them
		if all := m.Buckets(); len(all) != 0 {
			t.Errorf("an hour later %q", all)
		}
	})
}

// A step of the clock is seen by buckets and presence alike, and what would have expired by then
// has.
func TestMemoryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := remote.NewMemory()
		now := func() int64 {
			c, err := m.Presence(t.Context(), 0, m.Node("b"), remote.Process{ID: "p", TTL: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			r, err := memoryTake(m, "clock", 1)
			if err != nil || r.Now != c.Now {
				t.Errorf("the bucket's clock shows %d, that of presence %d, error %v", r.Now, c.Now, err)
			}
			return c.Now
		}
		start := now()
		if _, err := memoryTake(m, "b", 5); err != nil {
			t.Fatal(err)
		}
		for _, by := range []time.Duration{time.Hour, -2 * time.Hour, time.Microsecond} {
			m.Step(by)
			if d := now() - start; d != by.Microseconds() {
				t.Errorf("a step of %v moved the clock by %d µs", by, d)
			}
			start += by.Microseconds()
			if left := m.PTTL("b"); by == time.Hour && left != -2 {
				t.Errorf("the bucket has %d ms left after the step", left)
			}
		}
	})
}
