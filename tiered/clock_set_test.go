package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// setting is a store whose clock is set while calls are on their way to it: by as much before each.
type setting struct {
	*distant
	steps []time.Duration // of the calls to come
}

func (s *setting) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if len(s.steps) > 0 {
		s.Step(s.steps[0])
		s.steps = s.steps[1:]
	}
	s.distant.Run(ctx, timeout, calls, results)
}

// eachAlgorithm runs f with 100 tokens a day by each algorithm, taken directly.
func eachAlgorithm(t *testing.T, f func(t *testing.T, p tiered.Policy)) {
	for name, p := range map[string]tiered.Policy{
		"token bucket": {Algorithm: tiered.TokenBucket}, "several buckets": {Also: []tiered.Limit{tiered.PerHour(100)}},
		"fixed window": {Algorithm: tiered.FixedWindow}, "sliding window": {Algorithm: tiered.SlidingWindow},
		"sliding log": {Algorithm: tiered.SlidingLog},
	} {
		p.Name, p.Limit = "api", tiered.PerDay(100)
		if p.Algorithm != tiered.SlidingLog {
			p.Lease.Size = tiered.NoLease
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, p) }) })
	}
}

// remaining is what Redis has left of a key.
func remaining(t *testing.T, l *tiered.Limiter) int64 {
	t.Helper()
	d := l.Peek(context.Background(), "k")
	if d.Tier != tiered.Remote {
		t.Fatalf("%+v", d)
	}
	return d.Remaining
}

// If Reset returns nil, the bucket is reset, also if Redis' clock was set back or ahead before the process noticed it.
func TestResetWhenTheClockIsSet(t *testing.T) {
	const back, hour, ahead = -2 * second, -time.Hour, 2 * second
	for _, c := range []struct {
		name   string
		before time.Duration   // it is set before Reset is called, and nothing is heard of it
		during []time.Duration // before the look of Reset, before its first call and before its second
		fails  bool
	}{
		{name: "before", before: back},
		{name: "an hour before", before: hour},
		{name: "before, ahead", before: ahead},
		{name: "after the look", during: []time.Duration{0, back}},
		{name: "an hour after the look", during: []time.Duration{0, hour}},
		{name: "after the look, ahead", during: []time.Duration{0, ahead}},
		{name: "again and again", during: []time.Duration{0, back, back}, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachAlgorithm(t, func(t *testing.T, p tiered.Policy) {
				store := &setting{distant: newDistant(ms)}
				l := limiter(t, store, p, nil)
				for range 10 {
					want(t, l.AllowN(t.Context(), "k", 10), tiered.Granted)
				}
				time.Sleep(10 * ms)
				store.Step(c.before)
				time.Sleep(100 * ms)
				store.steps = c.during
				err := l.Reset(t.Context(), "k")
				left := remaining(t, l)
				if fails := c.fails && p.Algorithm != tiered.SlidingLog; fails && !errors.Is(err, tiered.ErrUnavailable) ||
					!fails && err != nil {
					t.Errorf("Reset: %v", err)
				} else if err == nil && left != 100 {
					t.Errorf("Reset returned nil, and %d of 100 are left", left)
				}
				if err == nil && !l.AllowN(t.Context(), "k", 100).Allowed {
					t.Error("what is denied was not forgotten")
				}
			})
		})
	}
}

// While the clock is back in an earlier window, a fixed window waits. A Reset at that time resets the window that
// waits.
func TestResetOfAWindowThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		p := tiered.Policy{
			Name: "api", Algorithm: tiered.FixedWindow, Calendar: true, Limit: tiered.PerMinute(100),
			Lease: neverLeased,
		}
		l := limiter(t, store, p, nil)
		time.Sleep(time.Minute + 100*ms - time.Duration(time.Now().UnixNano()%int64(time.Minute)))
		want(t, l.AllowN(t.Context(), "k", 100), tiered.Granted)
		store.Step(-500 * ms)
		ok(t, l.Reset(t.Context(), "k"))
		if left := remaining(t, l); left != 100 {
			t.Errorf("Reset returned nil, and %d of 100 are left", left)
		}
	})
}

// After Redis' clock was set, canceled tokens count as returned if they reached the bucket, and otherwise as burnt.
func TestCancelWhenTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{0, -500 * ms, -2 * second, -time.Hour, 2 * second, time.Minute} {
		for _, heard := range []bool{true, false} { // of the step, before the refund is sent
			t.Run(fmt.Sprintf("%v, heard %t", by, heard), func(t *testing.T) {
				eachAlgorithm(t, func(t *testing.T, p tiered.Policy) {
					store := newDistant(ms)
					l := limiter(t, store, p, nil)
					r := l.ReserveN(t.Context(), "k", 50)
					want(t, r.Decision, tiered.Granted)
					time.Sleep(10 * ms)
					store.Step(by)
					if heard {
						remaining(t, l)
					}
					r.Cancel()
					time.Sleep(200 * ms)
					s := l.Stats()
					if left := remaining(t, l); left != 50+s.Leases.Returned || s.Leases.Returned+s.Leases.Burnt != 50 {
						t.Errorf("%d of 100 are left, and the figures say %+v", left, s)
					}
					if heard && s.Leases.Returned != 50 {
						t.Errorf("%+v: the clock was known", s)
					}
					books(t, l.Group())
				})
			})
		}
	}
}

// moving is a store whose buckets of one key are just moving to a node with another clock.
type moving struct {
	*distant
	key   string
	ahead time.Duration // of the other clock
}

func (s *moving) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.distant.Run(ctx, timeout, calls, results)
	for i := range calls {
		if calls[i].Bucket == s.Key("api", s.key) {
			results[i].Reply.Now += s.ahead.Microseconds()
			results[i].Elsewhere = true
		}
	}
}

// A node's clock is learned only from its own replies, late ones too, and not from those of a node to which it
// redirected a call.
func TestRedirectedReplyTeachesNoClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := &moving{distant: newDistant(ms), key: "moves", ahead: ahead}
			p := direct("api", 100)
			l := limiter(t, store, p, nil)
			want(t, l.Allow(t.Context(), "stays"), tiered.Granted)
			for range 20 {
				time.Sleep(second)
				want(t, l.Allow(t.Context(), "moves"), tiered.Granted)
				n := tiered.Dispatch(l.Group()).Nodes()[0]
				now := tiered.Engine(l.Group()).Now()
				got, _ := n.ServerTime(now)
				if off := time.Duration(got-time.Now().UnixMicro()) * time.Microsecond; off.Abs() > 10*ms {
					t.Fatalf("%v off", off)
				}
				if steps := n.Stats().Steps; steps > 0 {
					t.Fatalf("its clock was set, it is said, %d times", steps)
				}
			}
		})
	}
}
