package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// overheard is a Redis whose calls are looked at.
type overheard struct {
	*remote.Redis
	mu    sync.Mutex
	calls []lua.Call
}

func (o *overheard) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	o.mu.Lock()
	o.calls = append(o.calls, calls...)
	o.mu.Unlock()
	o.Redis.Run(ctx, timeout, calls, results)
}

// A process whose clock is two hours ahead of Redis' clock does not count by its own. What others used of an hour stays
// used. No call states the process' time, with any algorithm: leases, direct takes, returns and resets.
func TestClientsClockCountsForNothing(t *testing.T) {
	server := redistest.StartWithClock(t)
	server.SetClock(-2 * time.Hour)
	store := &overheard{Redis: open(t, server.URL())}
	hour := tiered.Limit{Tokens: 10, Per: time.Hour}
	for i, p := range []tiered.Policy{
		{Limit: hour},
		{Limit: hour, Also: []tiered.Limit{tiered.PerDay(100)}},
		{Limit: hour, Algorithm: tiered.FixedWindow},
		{Limit: hour, Algorithm: tiered.SlidingWindow},
		{Limit: hour, Algorithm: tiered.SlidingLog},
	} {
		for _, size := range []int64{0, tiered.NoLease} {
			if p.Algorithm == tiered.SlidingLog && size == 0 {
				continue
			}
			p.Name, p.Lease.Size = fmt.Sprintf("p%d.%d", i, -size), size
			first := limiter(t, store, p, patientOptions(nil))
			for range 10 {
				want(t, first.Allow(ctx, "k"), tiered.Granted)
			}
			other := limiter(t, store, p, patientOptions(nil))
			if d := other.Allow(ctx, "k"); d.Reason != tiered.Limited || d.RetryAfter > 2*time.Hour {
				t.Errorf("%v, lease %d: %+v", p.Algorithm, size, d)
			}
			// What is on record as leased keeps its room, though it is spent.
			ok(t, errors.Join(first.Close(ctx), other.Reset(ctx, "k")))
			r := other.ReserveN(ctx, "k", 5)
			want(t, r.Decision, tiered.Granted)
			r.Settle(2)
			soon(t, "what was not used is back", 10*second, func() bool { return other.Peek(ctx, "k").Remaining == 8 })
		}
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	dated, true2h := 0, time.Now().Add(-2*time.Hour).UnixMicro()
	for _, c := range store.calls {
		if c.Now != 0 {
			t.Errorf("a call says that it is %d", c.Now)
		}
		for _, at := range []int64{c.Deadline, c.At, c.Reset, c.Since} { // by Redis' clock, as it was learned from it
			if at == 0 {
				continue
			}
			if dated++; max(at, true2h)-min(at, true2h) > 10*time.Minute.Microseconds() {
				t.Errorf("a call of another clock: %+v", c)
			}
		}
	}
	if len(store.calls) < 100 || dated < 100 {
		t.Errorf("%d calls, %d times: this shows little", len(store.calls), dated)
	}
}
