package tiered_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// openTime is how long a breaker stays open at most, once Redis is back: the longest wait for its
// next probe.
const openTime = second

// With any policy, Redis decides over every key again 20 s after an outage, and carries out a
// Reset. This holds for a key whose calls failed, and for one that was first used while the breaker
// was open.
func TestEveryPolicyRecovers(t *testing.T) {
	notUnderRace(t)
	i, every := 0, 1
	if testing.Short() || race.On {
		every = 23 // a prime, so that all values of each come up
	}
	for _, a := range algorithms {
		for _, limit := range []tiered.Limit{
			{Tokens: 10, Per: 100 * ms},
			{Tokens: 50, Per: 500 * ms},
			tiered.PerSecond(100),
			{Tokens: 200, Per: 2 * second},
			tiered.PerMinute(3000),
			tiered.PerDay(1000),
			{Tokens: 3000, Per: time.Minute, Burst: 5},
			{Tokens: 1, Per: second, Burst: 5000},
		} {
			for _, lease := range []tiered.Lease{{}, {Size: tiered.NoLease}, {Period: time.Minute}, {Period: 5 * ms}} {
				for _, timeout := range []time.Duration{50 * ms, 600 * ms, 5 * second} {
					for _, mode := range failModes {
						p := tiered.Policy{Name: "api", Limit: limit, Algorithm: a, FailMode: mode, Lease: lease}
						if p.Validate() != nil {
							continue
						}
						if i++; i%every == 0 {
							t.Run(fmt.Sprint(a, " ", limit, lease, timeout, " ", mode), func(t *testing.T) {
								t.Parallel() // in virtual time
								recovers(t, p, timeout)
							})
						}
					}
				}
			}
		}
	}
}

// recovers has two keys of a policy go through an outage.
func recovers(t *testing.T, p tiered.Policy, timeout time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		l := limiter(t, store, p, &tiered.Options{Timeout: timeout})
		load := func(d, step time.Duration, keys ...string) (tiers map[tiered.Tier]int) {
			tiers = map[tiered.Tier]int{}
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(step) {
				for _, key := range keys {
					r := l.ReserveN(ctx, key, 1)
					if tiers[r.Tier]++; tiers[r.Tier]%3 == 0 {
						r.Cancel()
					}
				}
			}
			return tiers
		}
		load(2*second, 3*ms, "k")
		store.Memory.Fail(io.EOF)
		load(2*second, 3*ms, "k")
		load(100*ms, 3*ms, "k", "l")
		store.Memory.Fail(nil)
		load(20*second, 20*ms, "k", "l")
		tiers := load(2*second, 3*ms, "k", "l")
		if s := l.Stats(); tiers[tiered.Failover] > 0 || s.Faults.Rejected > 0 {
			t.Errorf("decided by %v; %d calls refused for their key", tiers, s.Faults.Rejected)
		}
		for _, key := range []string{"k", "l"} {
			if err := l.Reset(ctx, key); err != nil {
				t.Errorf("Reset: %v", err)
			}
		}
	})
}

// losing is a store that answers some calls for buckets with an error, and the others well.
type losing struct {
	*distant
	err  error
	next atomic.Int64 // so many of the next calls
	only string       // a part of the names of the buckets that are meant; all when empty
	seen atomic.Int64 // calls that got the error
}

// A pipeline that has one that is meant takes others along: those are answered.
func (s *losing) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	meant := func(c lua.Call) bool { return strings.Contains(c.Bucket, s.only) }
	if !slices.ContainsFunc(calls, meant) || s.next.Add(-1) < 0 {
		s.distant.Run(ctx, timeout, calls, results)
		return
	}
	time.Sleep(ms)
	for i, c := range calls {
		if meant(c) {
			s.seen.Add(1)
			results[i] = remote.Result{Err: s.err}
		} else {
			s.distant.Run(ctx, timeout, calls[i:i+1], results[i:i+1])
		}
	}
}

// poisoned is a store that refuses the buckets of a key, as Redis does when they are of another
// type.
func poisoned(d *distant, key string) *losing {
	s := &losing{distant: d, err: &remote.ScriptError{Text: "RLFOREIGN key"}, only: key}
	s.next.Store(1e9)
	return s
}

// A single rare request meets a dead Redis. No other request is needed to notice that, and no more
// calls are made than that takes.
func TestRareRequestsFindOutThatRedisIsGone(t *testing.T) {
	for _, mode := range failModes {
		synctest.Test(t, func(t *testing.T) {
			store := &losing{distant: newDistant(ms), err: context.DeadlineExceeded}
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10), FailMode: mode}, nil)
			want(t, l.Allow(ctx, "k"), tiered.Granted)
			time.Sleep(10 * time.Minute)
			store.next.Store(1e9)
			begun := time.Now()
			l.Allow(ctx, "k")
			guard := tiered.Dispatch(l.Group()).Nodes()[0]
			for guard.State() == failover.Closed {
				if time.Since(begun) > 3*second {
					t.Fatalf("%v: after 3 s the breaker is closed", mode)
				}
				time.Sleep(ms)
			}
			t.Logf("%v: the breaker opened after %v, %d calls and one request", mode, time.Since(begun),
				store.seen.Load())
			time.Sleep(time.Minute) // presence goes on, calls for this key do not
			most := int64(3)
			if mode != tiered.FailClosed { // one tells of what was admitted
				most++
			}
			if n := store.seen.Load(); n < 3 || n > most {
				t.Errorf("%v: %d calls failed in a minute, want the 3 that open the breaker, and %d at most", mode, n, most)
			}
			store.next.Store(0)
		})
	}
}

// One lost call is repeated once, within a second. A call that failed because of its key alone is
// not repeated.
func TestOneLostCallIsRepeatedOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		err   error
		again int64
	}{
		{"lost", context.DeadlineExceeded, 1},
		{"poisoned", &remote.ScriptError{Text: "RLFOREIGN key"}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &losing{distant: newDistant(ms), err: c.err}
			l := limiter(t, watch.Damaged{Store: store}, tiered.Policy{Limit: tiered.PerHour(10)}, nil)
			want(t, l.Allow(ctx, "k"), tiered.Granted)
			calls := store.calls.Load() // the lost one is not counted
			store.next.Store(1)
			l.Allow(ctx, "k")
			time.Sleep(maxBackoff)
			if n := store.calls.Load() - calls; n != c.again {
				t.Errorf("%s: %d calls in the second after it, want %d", c.name, n, c.again)
			}
			time.Sleep(10 * time.Minute)
			if n := store.calls.Load() - calls; n != c.again {
				t.Errorf("%s: %d calls in ten minutes, want %d", c.name, n, c.again)
			}
		})
	}
}

// If a key's calls fail again and again while the node answers others, they are not repeated for
// ever.
func TestKeyThatKeepsFailingIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &losing{distant: newDistant(ms), err: context.DeadlineExceeded, only: "bad"}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(1000), Lease: neverLeased}, nil)
		store.next.Store(1e9)
		l.Allow(ctx, "bad")
		for range 6000 {
			l.Allow(ctx, "good")
			time.Sleep(10 * ms)
		}
		n := l.Group().Stats().Nodes[string(store.Node(""))]
		if store.seen.Load() != 3 || n.Outages.Breaker != "closed" {
			t.Errorf("%d calls failed in a minute, want 3; %+v", store.seen.Load(), n)
		}
		store.next.Store(0)
	})
}

// maxBackoff is the longest that a failed call waits to be made again; it is package local's.
const maxBackoff = time.Second

// A thousand keys that fail at once do not become a storm of repetitions.
func TestManyFailedCallsAreNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &losing{distant: newDistant(ms), err: context.DeadlineExceeded}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(10)}, nil)
		want(t, l.Allow(ctx, "k"), tiered.Granted)
		store.next.Store(1e9)
		for i := range 1000 {
			go l.Allow(ctx, fmt.Sprint(i))
		}
		time.Sleep(100 * ms)
		failed := store.seen.Load()
		time.Sleep(30 * second)
		n := store.seen.Load() - failed
		t.Logf("%d calls failed at once, %d in the 30 s after", failed, n)
		if n > 60 { // a probe each 0.5 to 1 s
			t.Errorf("%d calls in 30 s after %d that failed", n, failed)
		}
		store.next.Store(0)
	})
}

// Keys that are only ever asked for directly find out as well that Redis is back, within the time
// of one probe: theirs write something, or they would prove nothing.
func TestDirectKeysProbe(t *testing.T) {
	for _, c := range []struct {
		lease tiered.Lease
		ask   func(l *tiered.Limiter)
	}{
		{tiered.Lease{}, func(l *tiered.Limiter) { l.Allow(ctx, "k") }},
		{neverLeased, func(l *tiered.Limiter) { l.Allow(ctx, "k") }},
		{neverLeased, func(l *tiered.Limiter) { l.ReserveN(ctx, "k", 1) }},
		{neverLeased, func(l *tiered.Limiter) { tiered.All(l.For("k"), l.For("k2")).Allow(ctx) }},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := silent{newDistant(ms)} // no presence helps
			l := limiter(t, store, tiered.Policy{
				Limit: tiered.PerHour(10), Lease: c.lease, FailMode: tiered.FailClosed,
			}, nil)
			for range 3 {
				want(t, l.Allow(ctx, "first"), tiered.Granted)
				time.Sleep(10 * time.Minute)
			}
			guard := tiered.Dispatch(l.Group()).Nodes()[0]
			store.loseRequests.Store(true)
			for i := 0; guard.State() == failover.Closed; i++ {
				l.Allow(ctx, fmt.Sprint(i))
			}
			time.Sleep(10 * second)
			store.loseRequests.Store(false)
			back := time.Now()
			for guard.State() != failover.Closed {
				if time.Since(back) > openTime+tiered.DefaultTimeout {
					t.Fatal("no probe closed the breaker")
				}
				c.ask(l)
				time.Sleep(5 * ms)
			}
			want(t, l.Allow(ctx, "other"), tiered.Granted)
		})
	}
}
