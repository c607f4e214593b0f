package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever is planned, in whatever order: each bucket is checked once when the earliest time that
// was wanted for it has come, and a check that is earlier than all others wakes the schedule.
func TestScheduleKeepsTheEarlierOfTwoChecks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := schedule{wake: make(chan struct{}, 1)}
		buckets := make([]Bucket, 5)
		due := map[*Bucket]time.Duration{}
		earliest := func() (at time.Duration) {
			for _, d := range due {
				if at == 0 || d < at {
					at = d
				}
			}
			return at
		}
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "plan") {
				b := &buckets[rapid.IntRange(0, len(buckets)-1).Draw(t, "bucket")]
				at := now + time.Duration(rapid.IntRange(1, 20).Draw(t, "in"))
				first := len(a.checks) == 0 || at < a.checks[0].at // it sleeps until then, even if that is void by now
				a.add(b, at)
				if d, planned := due[b]; !planned || at < d {
					due[b] = at
				}
				if first && len(a.wake) == 0 {
					t.Fatalf("planned for %d, before all others, and it sleeps on", at)
				}
				continue
			}
			select {
			case <-a.wake:
			default:
			}
			now += time.Duration(rapid.IntRange(0, 10).Draw(t, "pass"))
			for _, b := range a.due(now) {
				if at, planned := due[b]; !planned || at > now {
					t.Fatalf("checked at %d, want %d (0: not at all)", now, at)
				}
				delete(due, b)
			}
			if at := earliest(); at != 0 && at <= now {
				t.Fatalf("it is %d, and what was planned for %d was not checked", now, at)
			}
		}
	})
}
