package tiered_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key that MaxKeys pushes out in an outage comes back with what was left of its share, however
// many other keys a client names. A key that nobody used has a full share.
func TestEvictedKeyHasNoNewShare(t *testing.T) {
	t.Parallel()
	for _, maxKeys := range []int{10, 1000} {
		for _, algorithm := range []tiered.Algorithm{tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingLog} {
			if testing.Short() && maxKeys == 1000 {
				continue
			}
			bubble(t, fmt.Sprint(algorithm, " ", maxKeys), func(t *testing.T) {
				s := remote.NewMemory()
				l := limiter(t, s, tiered.Policy{Limit: tiered.PerHour(100), Algorithm: algorithm},
					&tiered.Options{MaxKeys: maxKeys, Processes: 1, Logger: slog.New(slog.DiscardHandler)})
				time.Sleep(4 * time.Second)
				s.Fail(io.EOF)
				time.Sleep(5 * time.Second)
				useUp := func(key string) (admitted int) {
					for l.Allow(ctx, key).Allowed {
						admitted++
					}
					return admitted
				}
				admitted, start := 0, time.Now()
				for round := range min(20, 2000/maxKeys) {
					admitted += useUp("user")
					for i := range 3 * maxKeys {
						l.Allow(ctx, fmt.Sprint("other ", round, " ", i))
					}
					time.Sleep(100 * time.Millisecond)
				}
				if admitted > 101 || admitted < 99 {
					t.Errorf("%d admitted in %v of an outage by a share of 100 per hour", admitted, time.Since(start))
				}
				full := 0 // most are: some meet an evicted key in a place of the table
				for i := range 21 {
					if useUp(fmt.Sprint("somebody else ", i)) >= 98 {
						full++
					}
				}
				if full < 11 {
					t.Errorf("%d of 21 keys that nobody used have a full share", full)
				}
				time.Sleep(30 * time.Minute) // half of it is refilled
				for i := range 3 * maxKeys {
					l.Allow(ctx, fmt.Sprint("another ", i))
				}
				if n := useUp("user"); n < 48 || n > 51 {
					t.Errorf("after half an hour the key has a share of %d", n)
				}
			})
		}
	}
}

// A policy that is removed and comes back in an outage does not have full shares again.
func TestShareOutlivesItsPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := remote.NewMemory()
		g := must(tiered.NewGroup(s, &tiered.Options{Processes: 1, Logger: slog.New(slog.DiscardHandler)}))
		defer func() { _ = g.Close(ctx) }()
		policies := []tiered.Policy{{Name: "api", Limit: tiered.PerHour(100), FailMode: tiered.FailLocal}}
		s.Fail(io.EOF)
		admitted := 0
		for _, all := range [][]tiered.Policy{policies, nil, policies} {
			ok(t, g.SetPolicies(all))
			time.Sleep(5 * time.Second)
			if l, ok := g.Limiter("api"); ok {
				for l.Allow(ctx, "user").Allowed {
					admitted++
				}
			}
		}
		if admitted > 101 || admitted < 99 {
			t.Errorf("%d admitted by a share of 100 per hour", admitted)
		}
	})
}

// What a key used in an outage before MaxKeys pushed it out is known when it comes back, also if it
// takes centuries to refill, or if its limit was lowered meanwhile. A century, shared by five
// processes, is five. (Issue 38; random plans 16825 and 10609.)
func TestEvictedFallbackIsSpentByAnyLimit(t *testing.T) {
	for _, c := range []struct {
		name        string
		limit, then tiered.Limit
		processes   int
		burst       int // of the share
	}{
		{"a century", tiered.Limit{Tokens: 1, Per: 876_000 * time.Hour}, tiered.Limit{}, 5, 1},
		{"slower than time can tell", tiered.Limit{Tokens: 10, Per: 876_000 * time.Hour, Burst: 100}, tiered.Limit{}, 1, 100},
		{"lowered", tiered.Limit{Tokens: 10, Per: time.Second, Burst: 100}, tiered.Limit{Tokens: 1, Per: time.Minute, Burst: 100}, 1, 100},
		{"the same", tiered.Limit{Tokens: 1, Per: time.Minute, Burst: 100}, tiered.Limit{}, 1, 100},
	} {
		bubble(t, c.name, func(t *testing.T) {
			store := remote.NewMemory()
			l := limiter(t, store, tiered.Policy{Limit: c.limit, FailMode: tiered.FailLocal},
				&tiered.Options{MaxKeys: 1, Processes: c.processes})
			store.Fail(context.DeadlineExceeded)
			use := func() (admitted int) {
				for range 200 {
					if l.Allow(ctx, "k").Allowed {
						admitted++
					}
				}
				l.Allow(ctx, "another") // pushes it out
				time.Sleep(time.Second)
				return admitted
			}
			first := use()
			if c.then != (tiered.Limit{}) {
				ok(t, l.SetLimit(c.then))
			}
			again := use()
			t.Logf("%d, and %d when it came back", first, again)
			if first < c.burst || again > c.burst/10 { // the refill of a second
				t.Errorf("%d admitted, and %d when it came back, of %d", first, again, c.burst)
			}
		})
	}
}

// A key that is asked for all the time, and found without a lock, stays while others come and go.
func TestBusyKeyIsNotEvictedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, others = 4, 40
		const step = 1024 * time.Microsecond // no time of a decision is one that is chosen to count as a use
		l := limiter(t, newDistant(step), tiered.Policy{Limit: tiered.PerSecond(2000)}, &tiered.Options{MaxKeys: keys})
		warmEach(t, l, "busy", 300, step)
		for i := range others {
			want(t, l.Allow(ctx, strconv.Itoa(i)), tiered.Granted)
			warmEach(t, l, "busy", 500, step)
		}
		if n := l.Group().Stats().Evictions; n != others+1-keys {
			t.Errorf("%d evictions for %d others that came, want %d: the busy key was among them", n, others,
				others+1-keys)
		}
		books(t, l.Group())
	})
}

// A request over more keys than a process keeps is decided by Redis, and not by the fail mode
// because its keys push each other out.
func TestRequestOverMoreKeysThanAreKept(t *testing.T) {
	for _, perKey := range []bool{false, true} {
		for _, keys := range []int{3, 20} {
			bubble(t, fmt.Sprint(keys, " keys, PerKey ", perKey), func(t *testing.T) {
				p := tiered.Policy{Name: "api", Limit: tiered.PerHour(10), FailMode: tiered.FailOpen}
				if perKey {
					p.PerKey = func(string) tiered.Limit { return tiered.PerHour(10) }
				}
				l := limiter(t, remote.NewMemory(), p, &tiered.Options{MaxKeys: 2})
				time.Sleep(time.Second)
				var uses []tiered.Use
				for i := range keys {
					uses = append(uses, l.For(fmt.Sprint("key ", i)))
				}
				admitted := 0
				for range 100 {
					if tiered.All(uses...).Allow(ctx).Allowed {
						admitted++
					}
					each := make([]tiered.Decision, keys)
					tiered.All(uses...).AllowSeparately(ctx, each)
					for _, d := range each {
						if d.Tier == tiered.Failover {
							t.Fatalf("the fail mode decided, and Redis answers: %+v", d)
						}
					}
				}
				if admitted != 5 { // the other five of each key are those of AllowSeparately
					t.Errorf("%d of 100 admitted by a limit of 10 per hour", admitted)
				}
			})
		}
	}
}

// A process that keeps fewer keys than one request needs still decides within Budget, with one
// caller or many. A caller whose bucket is evicted during the look-up does not begin its wait
// again.
func TestFewerKeysThanOneRequestNeeds(t *testing.T) {
	for _, trip := range []time.Duration{ms, 8 * ms, 15 * ms} {
		for _, crowd := range []int{1, 2, 16} {
			for _, keys := range []int{1, 4, 12} {
				bubble(t, fmt.Sprint(trip, "/", crowd, " at a time/", keys, " keys"), func(t *testing.T) {
					var ps []tiered.Policy
					for i := range 4 {
						ps = append(ps, tiered.Policy{
							Name: fmt.Sprint("p", i), Limit: tiered.PerSecond(1 << 30),
							FailMode: tiered.FailClosed, Lease: neverLeased,
						})
					}
					l := several(t, newDistant(trip), &tiered.Options{MaxKeys: keys}, ps...)
					time.Sleep(second)
					var all sync.WaitGroup
					var mu sync.Mutex
					var longest time.Duration
					granted := 0
					for w := range crowd {
						all.Go(func() {
							for i := range 20 {
								start := time.Now()
								d := tiered.All(l[0].For(fmt.Sprint(w)), l[1].For("t"), l[2].For("i"),
									l[3].For(fmt.Sprint("x", w, i))).Allow(ctx)
								mu.Lock()
								longest = max(longest, time.Since(start))
								if d.Allowed {
									granted++
								}
								mu.Unlock()
								time.Sleep(time.Duration(w) * ms)
							}
						})
					}
					all.Wait()
					if longest > tiered.DefaultBudget {
						t.Errorf("the longest of %d decisions took %v, Budget is %v", 20*crowd, longest,
							tiered.DefaultBudget)
					}
					if crowd == 1 && granted != 20 {
						t.Errorf("%d of 20 were granted", granted)
					}
					t.Logf("%d of %d were granted, the longest took %v", granted, 20*crowd, longest)
					for _, one := range l[:1] {
						books(t, one.Group())
					}
				})
			}
		}
	}
}

// A request over more keys than the process keeps ends, also if limits are refreshed all the time:
// its buckets push each other out, and come back with limits that may be old.
func TestRefreshesDoNotHoldUpARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *tiered.Limiter
		lookUps, slow := 0, time.Duration(0)
		l = limiter(t, newDistant(ms), tiered.Policy{
			Limit: tiered.PerHour(10), Lease: neverLeased, FailMode: tiered.FailClosed,
			PerKey: func(string) tiered.Limit {
				if lookUps++; lookUps < 1000 {
					l.Refresh("another")
				}
				time.Sleep(slow)
				return tiered.PerHour(10)
			},
		}, &tiered.Options{MaxKeys: 1})
		tiered.All(l.For("a"), l.For("b")).Allow(ctx)
		if lookUps > 50 {
			t.Errorf("%d look-ups", lookUps)
		}
		lookUps, slow = 0, 60*ms // the Budget is 100 ms
		begun := time.Now()
		tiered.All(l.For("c"), l.For("d")).Allow(ctx)
		if took := time.Since(begun); took > 400*ms {
			t.Errorf("it took %v, and %d look-ups", took, lookUps)
		}
	})
}

// More rarely used keys are under way than the process keeps, while Redis or the process is slow
// for a moment. Redis decides all of them.
func TestMoreKeysUnderWayThanAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(ms)
		start := time.Now()
		store.tail = func() float64 {
			if time.Since(start)%(500*ms) < 20*ms {
				return 10 // two pipelines of 64 calls in that time are 12 800/s
			}
			return 1
		}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerMinute(10), FailMode: tiered.FailClosed},
			&tiered.Options{MaxKeys: 100, MaxInFlight: 1000})
		time.Sleep(second)
		var all sync.WaitGroup
		var refused atomic.Int64
		for i := range 24_000 { // 12 000/s
			all.Go(func() {
				if d := l.Allow(ctx, fmt.Sprint(i)); !d.Allowed {
					refused.Add(1)
				}
			})
			time.Sleep(second / 12_000)
		}
		all.Wait()
		if n := refused.Load(); n > 0 {
			t.Errorf("%d of 24000 keys went to the fail mode", n)
		}
		books(t, l.Group())
	})
}
