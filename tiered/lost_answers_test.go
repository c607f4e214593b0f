package tiered_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// muteStore is a Memory that executes calls, and whose answers are lost while it is mute.
type muteStore struct {
	*remote.Memory
	mute atomic.Bool
}

func (s *muteStore) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.Memory.Run(ctx, timeout, calls, results)
	if s.mute.Load() {
		time.Sleep(timeout)
		for i := range calls {
			results[i] = remote.Result{Err: context.DeadlineExceeded}
		}
	}
}

// What an outage admitted is charged once, however often it is reported: also if answers are lost for longer than a lease
// lives. (Issue 38; random plan 4883.)
func TestLostAnswersChargeADebtOnce(t *testing.T) {
	const outage, mute = 20, 5 // requests
	for _, c := range []struct {
		algorithm tiered.Algorithm
		also      []tiered.Limit
	}{
		{tiered.TokenBucket, nil},
		{tiered.TokenBucket, []tiered.Limit{tiered.PerDay(1000)}},
		{tiered.FixedWindow, nil},
		{tiered.SlidingWindow, nil},
		{tiered.SlidingWindow, []tiered.Limit{tiered.PerDay(1000)}},
		{tiered.SlidingLog, nil},
	} {
		t.Run(fmt.Sprint(c.algorithm, " ", len(c.also)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &muteStore{Memory: remote.NewMemory()}
				p := tiered.Policy{Name: "api", Algorithm: c.algorithm, Limit: tiered.PerHour(100), Also: c.also}
				l := limiter(t, s, p, &tiered.Options{Logger: slog.New(slog.DiscardHandler)})
				time.Sleep(4 * time.Second)
				ask := func(n int, pause time.Duration) {
					for range n {
						if d := l.Allow(t.Context(), "user"); d.Tier != tiered.Failover || !d.Allowed {
							t.Fatalf("%+v", d)
						}
						time.Sleep(pause)
					}
				}
				s.Fail(io.EOF)
				ask(outage, time.Millisecond)
				s.Fail(nil)
				s.mute.Store(true)
				ask(mute, 5*time.Second)
				s.mute.Store(false)
				time.Sleep(10 * time.Second)
				l.Allow(t.Context(), "another") // finds out
				d := l.Allow(t.Context(), "user")
				for end := time.Now().Add(10 * time.Second); d.Tier == tiered.Failover && time.Now().Before(end); {
					time.Sleep(100 * time.Millisecond)
					d = l.Allow(t.Context(), "user")
				}
				// A grant whose answer is lost is used by nobody: up to four tokens for each request here.
				if least := int64(100 - outage - 5*mute - 2); d.Remaining < least || d.Tier == tiered.Failover {
					t.Errorf("%d remain, want %d at least: %v %v", d.Remaining, least, d.Reason, d.Tier)
				} else {
					t.Logf("%d remain, %v", d.Remaining, d.Reason)
				}
			})
		})
	}
}
