package tiered_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Another Per or Precision of a sliding window begins with what the old one counted: whatever it is changed to, and
// however often, no instant holds more than the largest of the limits.
func TestAnotherPrecisionForgetsNothing(t *testing.T) {
	for name, change := range map[string]func(*tiered.Policy){
		"another precision":         func(p *tiered.Policy) { p.Limit.Precision = 2 * second },
		"a lower limit, Per longer": func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 90, Per: 61 * second} },
		"Per shorter than a lease":  func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 100, Per: 500 * ms} },
		"an hour":                   func(p *tiered.Policy) { p.Limit = tiered.Limit{Tokens: 100, Per: time.Hour} },
	} {
		for _, lease := range []tiered.Lease{{}, {Size: tiered.NoLease}, {Size: 20}} {
			t.Run(fmt.Sprint(name, lease), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := tiered.Policy{
						Name: "api", Limit: tiered.PerMinute(100), Algorithm: tiered.SlidingWindow,
						Lease: lease,
					}
					l := limiter(t, newDistant(ms), p, nil)
					time.Sleep(10 * ms)
					admitted := int64(0)
					take := func(each int64) {
						for range 90 / each {
							if d := l.AllowN(t.Context(), "k", each); d.Allowed {
								admitted += each
							}
						}
					}
					take(30)
					take(1)
					for range 3 {
						set(t, l, change)
						take(90)
						take(1)
						set(t, l, func(p *tiered.Policy) { p.Limit = tiered.PerMinute(100); p.Limit.Precision = 3 * second })
						take(10)
					}
					if admitted > 100 || admitted < 80 {
						t.Errorf("%d admitted at once, the limit was never above 100", admitted)
					}
					if s := l.Group().Stats().Policies["api"]; s.Faults.Rejected > 0 {
						t.Errorf("%d calls were refused for what they say", s.Faults.Rejected)
					}
				})
			})
		}
	}
}

// versions are policies of one name, of which each process of a deploy has one.
func versions() []tiered.Policy {
	all := make([]tiered.Policy, 4)
	for i := range all {
		all[i] = tiered.Policy{Name: "api", Limit: tiered.PerMinute(100), Algorithm: tiered.SlidingWindow}
	}
	all[1].Limit.Precision = 2 * second
	all[2].Limit = tiered.Limit{Tokens: 90, Per: 10 * second}
	all[3].Also = []tiered.Limit{tiered.PerHour(1000)}
	return all
}

// Processes whose policies differ in Per, Precision and Also count each other's admissions: in an instant, and in
// every interval as long as the shortest of the windows.
func TestVersionsInADeploy(t *testing.T) {
	const shortest = 10 * second
	play := func(t *testing.T, store remote.Store, pause func(), rounds int) {
		var fleet []*tiered.Limiter
		for _, p := range versions() {
			fleet = append(fleet, several(t, store, nil, p)[0])
		}
		var times []time.Time
		for range rounds {
			for _, l := range fleet {
				if l.Allow(t.Context(), "k").Allowed {
					times = append(times, time.Now())
				}
			}
			pause()
		}
		first := 0
		for i, at := range times {
			for ; at.Sub(times[first]) >= shortest; first++ {
			}
			if n := i - first + 1; n > 100 {
				t.Fatalf("%d admitted within %v", n, shortest)
			}
		}
		if len(times) < 50 { // some lie in leases
			t.Errorf("only %d admitted", len(times))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		play(t, newDistant(ms), func() { time.Sleep(20 * ms) }, 6000)
	})
	play(t, open(t, redistest.Start(t).URL()), func() {}, 60)
}
