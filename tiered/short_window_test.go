package tiered_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// shortWindows are sliding windows of which one is shorter than a lease may live: a second, two
// Timeouts, four periods. They are taken directly; what is given back, reset and owed goes by calls
// with a lease id all the same.
var shortWindows = []struct {
	name string
	p    tiered.Policy
	o    tiered.Options
}{
	{"500 ms", tiered.Policy{Limit: tiered.Limit{Tokens: 50, Per: 500 * ms}}, tiered.Options{}},
	{"shorter than two timeouts", tiered.Policy{Limit: tiered.PerSecond(100)}, tiered.Options{
		Budget: 100 * ms, Timeout: 600 * ms,
	}},
	{
		"minute and 500 ms",
		tiered.Policy{Limit: tiered.PerMinute(6000).And(tiered.Limit{Tokens: 50, Per: 500 * ms})},
		tiered.Options{},
	},
	{
		"shorter than a round trip",
		tiered.Policy{Limit: tiered.Limit{Tokens: 50, Per: 500 * time.Microsecond}},
		tiered.Options{},
	},
	{"a microsecond", tiered.Policy{Limit: tiered.Limit{Tokens: 1, Per: time.Microsecond}}, tiered.Options{}},
}

// eachShortWindow plays f with a limiter of each, in a bubble.
func eachShortWindow(t *testing.T, mode tiered.FailMode, f func(t *testing.T, store *distant, l *tiered.Limiter)) {
	for _, c := range shortWindows {
		bubble(t, fmt.Sprint(c.name, " ", mode), func(t *testing.T) {
			store := newDistant(30 * ms) // longer than Budget, shorter than Timeout
			store.near.Store(true)
			p := c.p
			p.Name, p.Algorithm, p.FailMode = "api", tiered.SlidingWindow, mode
			l := limiter(t, store, p, &c.o)
			time.Sleep(10 * ms)
			f(t, store, l)
			if s := l.Stats(); s.Faults.Rejected > 0 {
				t.Errorf("%d calls were refused for what they say", s.Faults.Rejected)
			}
			books(t, l.Group())
		})
	}
}

// With any short window, canceled tokens come back, a higher cost is charged, and a Reset is
// carried out.
func TestShortWindowSettles(t *testing.T) {
	eachShortWindow(t, tiered.FailClosed, func(t *testing.T, _ *distant, l *tiered.Limiter) {
		r := l.ReserveN(ctx, "k", 1)
		want(t, r.Decision, tiered.Granted)
		r.Cancel()
		r = l.ReserveN(ctx, "k", 1) // with the refund
		want(t, r.Decision, tiered.Granted)
		r.Settle(2)
		time.Sleep(time.Second)
		want(t, l.Allow(ctx, "k"), tiered.Granted)
		if err := l.Reset(ctx, "k"); err != nil {
			t.Errorf("Reset: %v", err)
		}
		if s := l.Stats(); s.Leases.Returned != 1 || s.Leases.Held != 0 {
			t.Errorf("returned %d, held %d", s.Leases.Returned, s.Leases.Held)
		}
	})
}

// Who is below a limit is served whether requests are canceled or not: what a settling call takes
// is not leased, or it would count for longer than the window.
func TestShortWindowSettlesAndTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{
			Limit: tiered.Limit{Tokens: 4, Per: 100 * ms}, Algorithm: tiered.SlidingWindow,
		}, nil)
		time.Sleep(10 * ms)
		refused := 0
		for i := range 1000 {
			if r := l.ReserveN(ctx, "k", 1); !r.Allowed {
				refused++
			} else if i%10 == 0 {
				r.Cancel()
			}
			if time.Sleep(10 * ms); i%10 > 0 { // else the next one carries the refund
				time.Sleep(25 * ms)
			}
		}
		if refused > 0 {
			t.Errorf("%d of 1000 requests were refused, at 0.7 of the limit", refused)
		}
	})
}

// deaf is a Memory that refuses every call with a lease id, for what it says.
type deaf struct {
	*remote.Memory
	deaf atomic.Bool
}

func (d *deaf) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	d.Memory.Run(ctx, timeout, calls, results)
	for i := range calls {
		if d.deaf.Load() && calls[i].Lease != "" {
			results[i] = remote.Result{Err: &remote.ScriptError{Text: "RLARG argument 3"}}
		}
	}
}

// If Redis never accepts a key's debt or returned tokens, they are given up after a few tries, and
// the limit decides again. A Reset reports an error.
func TestWhatIsNeverAcceptedIsGivenUp(t *testing.T) {
	for _, a := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingLog, tiered.SlidingWindow} {
		for _, mode := range failModes {
			bubble(t, fmt.Sprint(a, " ", mode), func(t *testing.T) {
				store := &deaf{Memory: remote.NewMemory()}
				l := limiter(t, watch.Damaged{Store: store}, tiered.Policy{
					Limit: tiered.PerHour(100), Algorithm: a, FailMode: mode, Lease: neverLeased,
				}, nil)
				time.Sleep(10 * ms)
				r := l.ReserveN(ctx, "k", 5)
				want(t, r.Decision, tiered.Granted)
				store.Memory.Fail(context.DeadlineExceeded)
				for range 5 {
					l.Allow(ctx, "k")
				}
				time.Sleep(2 * second)
				store.deaf.Store(true)
				store.Memory.Fail(nil)
				time.Sleep(2 * second)
				r.Settle(4)
				if err := l.Reset(ctx, "k"); err == nil {
					t.Error("Reset says that it was carried out")
				}
				for range 10 {
					l.Allow(ctx, "k")
					time.Sleep(second)
				}
				want(t, l.Allow(ctx, "k"), tiered.Granted)
				s := l.Stats()
				if alone := s.Tokens.Fallback + s.Tokens.Open; s.Leases.Burnt != 1 && a != tiered.SlidingLog || s.Costs.Forgiven != alone ||
					s.Costs.Settled > 0 {
					t.Errorf("burnt %d, forgiven %d of %d, settled %d", s.Leases.Burnt, s.Costs.Forgiven, alone, s.Costs.Settled)
				}
				books(t, l.Group())
			})
		}
	}
}

// A fixed window that may be over when a reply comes is taken directly. It is served also while a
// debt is unreported.
func TestBriefFixedWindowIsServed(t *testing.T) {
	for _, per := range []time.Duration{time.Microsecond, ms, 99 * ms} {
		for _, mode := range []tiered.FailMode{tiered.FailOpen, tiered.FailLocal, tiered.FailClosed} {
			synctest.Test(t, func(t *testing.T) {
				limit := tiered.Limit{Tokens: 1000, Per: per}
				l := limiter(t, newDistant(2*ms), tiered.Policy{
					Limit: limit, Algorithm: tiered.FixedWindow, FailMode: mode,
				}, nil)
				for range 200 {
					r := l.ReserveN(ctx, "k", 2)
					if r.Tier == tiered.Failover || !r.Allowed {
						t.Fatalf("%v: %+v", per, r.Decision)
					}
					r.Settle(1, 1)
					time.Sleep(ms)
				}
			})
		}
	}
}
