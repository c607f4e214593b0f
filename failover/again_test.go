package failover_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
)

// TestBeginAgain: an attempt that is started anew counts like a new one, and no timer of its former
// lives ends it.
func TestBeginAgain(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 1))
			const timeout = 50 * time.Millisecond
			g := failover.New(failover.Options{Timeout: timeout})
			var a *failover.Attempt
			reused, expired, expirations, late := 0, 0, 0, true
			for i := range 500 {
				before, calls := a, 0
				var ok bool
				if a, ok = g.BeginAgain(a, func() { calls++ }); !ok {
					t.Fatalf("attempt %d was refused: %v", i, g.State())
				}
				if a == before {
					reused++
				}
				if late && a == before { // of the first, or of the last one, which its timer ended
					t.Fatalf("attempt %d is an expired one", i)
				}
				late = i%3 == 0 && draw.IntN(2) == 0 // never three in a row
				length := time.Duration(draw.Int64N(int64(timeout)))
				if late {
					length += timeout
					expired++
				}
				time.Sleep(length)
				synctest.Wait()
				if a.End(nil) == late || (calls == 1) != late || calls > 1 {
					t.Fatalf("attempt %d: after %v expired %d times", i, length, calls)
				}
				a.Abort() // as a deferred one does
				expirations += calls
			}
			time.Sleep(2 * timeout)
			if expirations != expired || g.State() != failover.Closed || reused < 500-1-expired {
				t.Errorf("%d of %d expired, %d reused, %v", expirations, expired, reused, g.State())
			}
		})
	}
}

// TestBeginAgainFired: an attempt that ended just after its timer had fired is not reused. The
// timer would end the new one.
func TestBeginAgainFired(t *testing.T) {
	g := failover.New(failover.Options{Timeout: time.Hour})
	a, _ := g.Begin(nil)
	a.Timer().Stop() // as if it had fired
	if !a.End(nil) {
		t.Fatal("it had ended")
	}
	if b, ok := g.BeginAgain(a, nil); !ok || b == a || !b.End(nil) {
		t.Error("reused")
	}
}

// TestBeginAgainRefused: an attempt that may not begin leaves the old one as it is, and a probe is
// one again.
func TestBeginAgainRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := failover.New(failover.Options{})
		var a *failover.Attempt
		for range 3 {
			a, _ = g.BeginAgain(a, nil)
			a.End(errors.New("lost"))
		}
		if b, ok := g.BeginAgain(a, nil); ok || b != nil {
			t.Error("an open breaker let an attempt through")
		}
		time.Sleep(time.Second)
		b, ok := g.BeginAgain(a, nil)
		if !ok || b != a || g.State() != failover.Probing {
			t.Fatalf("no probe: %t, %v", ok, g.State())
		}
		if !b.End(nil) || g.State() != failover.Closed {
			t.Errorf("after the probe %v", g.State())
		}
	})
}
