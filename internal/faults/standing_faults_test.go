package faults

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestStandingSharesThroughFaults runs four real processes that use standing shares. The primary is killed and a sentinel
// promotes its replica. Then a process without the option joins, and leaves. Each fault costs no more than
// docs/standing.md says, and the rest of the time costs nothing.
func TestStandingSharesThroughFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("two minutes of real time")
	}
	const few = 4
	s := &faultRun{T: t}
	withSentinel(s)
	limit := tiered.PerSecond(100).WithBurst(200)
	rate, shares := float64(limit.Tokens), float64(limit.Burst)/8 // per second; tokens of all shares of a key
	loads := func(option tiered.Standing) (all []harness.Load) {
		for name, times := range map[string]float64{"near": 0.8, "over": 3} {
			p := tiered.Policy{Name: name, Limit: limit, FailMode: tiered.FailClosed, Standing: option}
			all = append(all, harness.Load{Policy: p, Offer: times * rate / few})
		}
		return all
	}
	job := harness.Job{Client: s.client, Loads: loads(tiered.StandingOn)}
	fleet := harness.StartFleet(t, job, few)
	began := time.Now()

	// seen is what the processes say now: tokens taken from shares, and whether each sees that many outsiders.
	seen := func(outside int64) (taken int64, all bool) {
		all = true
		for _, m := range fleet {
			r := m.Report()
			if r == nil {
				t.Fatal("a process does not answer")
			}
			for _, p := range r.Stats.Policies {
				taken += p.Standing
				all = all && p.Outside == outside
			}
			s.lag = max(s.lag, r.Lag)
		}
		return taken, all
	}
	inUse := func(when string) {
		t.Helper()
		before, _ := seen(0)
		s.waitFor("no share is used "+when, func() bool {
			taken, _ := seen(0)
			return taken > before+few
		})
	}
	time.Sleep(75 * time.Second) // the quarantine, and time to fill the shares
	inUse("after the quarantine")

	down := time.Now().UnixNano()
	s.sentinel.Primary.Kill()
	promoted(s)
	time.Sleep(7 * time.Second) // clients find the new primary, leases of the old one end, and two polls
	settled := time.Now().UnixNano()
	inUse("after the failover")
	time.Sleep(4 * time.Second)

	joined := time.Now().UnixNano()
	old := harness.StartFleet(t, harness.Job{Client: s.client, Loads: loads(tiered.StandingOff)}, 1)
	s.waitFor("an old process is not noticed", func() bool { _, all := seen(1); return all })
	noticed := time.Now().UnixNano()
	before, _ := seen(1)
	time.Sleep(5 * time.Second)
	if after, _ := seen(1); after != before {
		t.Errorf("%d tokens came from shares while an old process was there", after-before)
	}
	left := time.Now()
	old.Stop()
	s.waitFor("that the old process left is not noticed", func() bool { _, all := seen(0); return all })
	back := time.Since(left)
	inUse("after the old process left")
	time.Sleep(4 * time.Second)
	fleet.Stop()

	price := time.Duration(noticed - joined)
	t.Logf("%.0f s; an old process was noticed after %v, and that it left after %v; the machine held processes up for %v",
		time.Since(began).Seconds(), price.Round(time.Millisecond), back.Round(time.Millisecond), s.lag)
	if price > 8*time.Second && s.lag <= busy {
		t.Errorf("an old process was noticed after %v, want 8 s at most", price)
	}
	all := append(fleet, old...)
	end := time.Now().UnixNano()
	for _, l := range job.Loads {
		requests := all.Records(l.Name)
		for _, part := range []struct {
			name     string
			from, to int64
			allowed  float64
		}{
			{"before the failover", 0, down, 0},
			{"around the failover", 0, joined, float64(limit.Burst) + shares},
			{"after the failover", settled, joined, 0},
			{"around the old process", settled, end, shares + rate/8*price.Seconds()},
			{"after the old process is noticed", noticed, end, 0},
		} {
			v := harness.Judge(harness.Within(requests, part.from, part.to), limit)
			t.Logf("%s %s: %d admitted, an ideal bucket %d, over-admission %.1f of %.1f", l.Name, part.name, v.Admitted, v.Ideal,
				max(0, v.Over()), part.allowed)
			if v.Admitted == 0 {
				t.Errorf("%s %s: nothing was admitted: this shows nothing", l.Name, part.name)
			}
			if v.Over() > part.allowed {
				t.Errorf("%s %s: over-admission, want %.0f at most: %v", l.Name, part.name, part.allowed, v.Worst)
			}
		}
	}
}
