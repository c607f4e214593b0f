package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
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

// A process whose clock is two hours ahead of Redis' clock does not count by its own. What others
// used of an hour stays used. No call states the process' time, with any algorithm: leases, direct
// takes, returns and resets.
func TestClientsClockCountsForNothing(t *testing.T) {
	server := redistest.StartWithClock(t)
	server.SetClock(-2 * time.Hour)
	store := &overheard{Redis: open(t, server.URL())}
	hour := tiered.Limit{Tokens: 10, Per: time.Hour}
	for i, p := range []tiered.Policy{
		{Limit: hour},
		{Limit: hour.And(tiered.PerDay(100))},
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
	for _, a := range algorithms {
		p := tiered.Policy{Name: "api", Limit: tiered.PerDay(100), Algorithm: a, Lease: neverLeased}
		play := func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, p) }) }
		t.Run(a.String(), play)
		if several := lua.Algorithm(a).BySeveral(); several != lua.Algorithm(a) {
			p.Limit = p.Limit.And(tiered.PerHour(100))
			t.Run(several.String(), play)
		}
	}
}

// remaining is what Redis has left of a key.
func remaining(t *testing.T, l *tiered.Limiter) int64 {
	t.Helper()
	d := l.Peek(ctx, "k")
	if d.Tier != tiered.Remote {
		t.Fatalf("%+v", d)
	}
	return d.Remaining
}

// After Redis' clock was set, canceled tokens count as returned if they reached the bucket, and
// otherwise as burnt.
func TestCancelWhenTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{0, -500 * ms, -2 * second, -time.Hour, 2 * second, time.Minute} {
		for _, heard := range []bool{true, false} { // of the step, before the refund is sent
			t.Run(fmt.Sprintf("%v, heard %t", by, heard), func(t *testing.T) {
				eachAlgorithm(t, func(t *testing.T, p tiered.Policy) {
					store := newDistant(ms)
					l := limiter(t, store, p, nil)
					r := l.ReserveN(ctx, "k", 50)
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

// A node's clock is learned only from its own replies, late ones too, and not from those of a node
// to which it redirected a call.
func TestRedirectedReplyTeachesNoClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			store := &moving{distant: newDistant(ms), key: "moves", ahead: ahead}
			p := direct("api", 100)
			l := limiter(t, store, p, nil)
			want(t, l.Allow(ctx, "stays"), tiered.Granted)
			for range 20 {
				time.Sleep(second)
				want(t, l.Allow(ctx, "moves"), tiered.Granted)
				n := tiered.Dispatch(l.Group()).Nodes()[0]
				now := tiered.Engine(l.Group()).Now()
				got, _ := n.ServerTime(now)
				if off := time.Duration(got-time.Now().UnixMicro()) * time.Microsecond; off.Abs() > 10*ms {
					t.Fatalf("%v off", off)
				}
				if steps := n.Steps.Load(); steps > 0 {
					t.Fatalf("its clock was set, it is said, %d times", steps)
				}
			}
		})
	}
}

func TestStandstillGivesUpTheLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10_000)}, nil)
		warm(t, l, "k", 300)
		if l.Stats().Leases.Held == 0 {
			t.Fatal("nothing is leased: this shows nothing")
		}
		before := *tiered.Engine(l.Group()).Lease.Load()
		tiered.Engine(l.Group()).StandStill(time.Second) // as if the wall clock had gone on for a second without us
		tiered.Engine(l.Group()).WatchClock(tiered.Engine(l.Group()).Now())
		if *tiered.Engine(l.Group()).Lease.Load() == before {
			t.Error("the lease id is that of before: a copy of this machine may be using it too")
		}
		if d := l.Allow(ctx, "k"); !d.Allowed || d.Tier != tiered.Remote {
			t.Fatalf("%+v, want Redis to be asked: the lease may be over", d)
		}
		time.Sleep(10 * ms)
		warm(t, l, "k", 10)
		books(t, l.Group())
	})
}

// A process that is stopped while it has leases stood still. One that waits for a busy machine did
// not, nor did one that has nothing to do.
func TestStoppedProcessStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, newDistant(ms), tiered.Policy{Limit: tiered.PerHour(10_000)}, nil)
		e := tiered.Engine(l.Group())
		stop := func(d time.Duration) int64 { // as if nothing had run for so long
			before := e.Standstills.Load()
			e.WatchClock(e.Now() + d)
			e.WatchClock(e.Now() + d) // another call of the same moment
			return e.Standstills.Load() - before
		}
		warm(t, l, "k", 300)
		if n := stop(900 * ms); n != 0 {
			t.Errorf("%d standstills in 0.9 s", n)
		}
		time.Sleep(second)
		warm(t, l, "k", 300)
		for d := time.Duration(0); d < 3*second; d += 300 * ms {
			e.WatchClock(e.Now() + d) // a call that Run waits behind
		}
		if n := e.Standstills.Load(); n != 0 {
			t.Errorf("%d standstills in 3 s with calls", n)
		}
		time.Sleep(3 * second)
		warm(t, l, "k", 300)
		if n := stop(1500 * ms); n != 1 || l.Stats().Leases.Held == 0 {
			t.Errorf("%d standstills in 1.5 s with %d tokens in leases, want one", n, l.Stats().Leases.Held)
		}
		time.Sleep(time.Minute) // its leases go back
		if n := stop(time.Minute); n != 0 {
			t.Errorf("%d standstills in a minute without a request", n)
		}
		books(t, l.Group())
	})
}

// A process of which standing shares decide everything makes no call but its presence with the poll
// of the table. That looks at the wall clock too: a right that was lent to others while the machine
// was suspended is not used again.
func TestPollSeesAStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, remote.NewMemory(), tiered.Policy{Limit: tiered.PerMinute(800), Standing: 1.0 / 8}, nil)
		time.Sleep(3 * time.Minute)
		if s := l.Group().Stats(); s.Standing.Fraction != 1 || s.Standstills != 0 {
			t.Fatalf("%+v", s.Standing)
		}
		before := *tiered.Engine(l.Group()).Lease.Load()
		tiered.Engine(l.Group()).StandStill(time.Minute) // as if the wall clock had gone on for a minute without us
		time.Sleep(dispatch.PresencePeriod)
		if s := l.Group().Stats(); s.Standstills != 1 || *tiered.Engine(l.Group()).Lease.Load() == before {
			t.Errorf("after a poll %d standstills were seen, and the id is %s, as before %s", s.Standstills,
				*tiered.Engine(l.Group()).Lease.Load(), before)
		}
	})
}
