package tiered_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The Standing hook gets every change of a process' part, and of whether the shares of a policy are used.
func TestStandingEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var lines []string
		s := &afflicted{distant: &distant{Memory: remote.NewMemory()}}
		var log logged
		g, err := tiered.NewGroup(s, &tiered.Options{
			Logger: log.logger(),
			Trace: &tiered.Trace{Standing: func(e tiered.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Policy != "" {
					lines = append(lines, fmt.Sprintf("%s %v %d", e.Policy, e.What == "shares used", e.Outside))
					return
				}
				if e.Shares.Fraction > 0 && e.Shares.Left < 55*time.Second {
					t.Errorf("%+v", e)
				}
				lines = append(lines, fmt.Sprintf("%.2f of %d, quarantine %v", e.Shares.Fraction, e.Shares.Members, e.Shares.Quarantine))
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = g.Close(t.Context()) }()
		if _, err := g.NewLimiter(standingPolicy("api")); err != nil {
			t.Fatal(err)
		}
		after := func(what string, d time.Duration, want ...string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(lines, want) {
				t.Errorf("%s: %q, want %q", what, lines, want)
			}
			lines = nil
		}
		after("a new table", 10*time.Second, "0.00 of 1, quarantine true", "api true 0")
		after("it lends", settleShares, "1.00 of 1, quarantine false")
		other := run(t, s, "", standingPolicy("api"))
		after("another process", 20*time.Second, "0.50 of 2, quarantine false")
		other.end()
		after("it is gone", 20*time.Second, "1.00 of 1, quarantine false")
		off := standingPolicy("api")
		off.Standing = tiered.StandingOff
		old := run(t, s, "", off)
		after("an old process", 10*time.Second, "api false 1")
		old.end()
		after("it is gone", 30*time.Second, "api false 0", "api true 0")
		gone := errors.New("gone")
		s.broken.Store(&gone)
		s.absence.Store(&gone)
		after("an outage", 50*time.Second)
		after("the end of the right", 15*time.Second, "0.00 of 1, quarantine false")
		s.broken.Store(nil)
		s.absence.Store(nil)
		after("after the outage", 10*time.Second, "1.00 of 1, quarantine false")
	})
}
