package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// replicated is a store whose primary can be replaced by what a replica knew.
type replicated struct {
	*distant
	successor atomic.Pointer[distant]
}

func (s *replicated) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if d := s.successor.Load(); d != nil {
		d.Run(ctx, timeout, calls, results)
		return
	}
	s.distant.Run(ctx, timeout, calls, results)
}

// promote makes a replica the primary. The replica has missed all writes during lag.
func (s *replicated) promote(lag func()) {
	replica := s.Memory.Clone()
	lag()
	s.successor.Store(&distant{Memory: replica, trip: s.trip})
}

// Losses of Redis are counted, and nothing else that looks like one.
func TestStateLossesAreLosses(t *testing.T) {
	ask := func(l *tiered.Limiter, d time.Duration) {
		for range d / (5 * ms) {
			l.Allow(ctx, "k")
			time.Sleep(5 * ms)
		}
	}
	for _, c := range []struct {
		name  string
		event func(*replicated, *tiered.Limiter)
		lost  bool
	}{
		{"a planned failover that loses half a second", func(s *replicated, l *tiered.Limiter) {
			s.promote(func() { ask(l, 500*ms) })
			ask(l, second)
		}, true},
		{"a failover that loses the lease's first call", func(s *replicated, l *tiered.Limiter) {
			time.Sleep(time.Minute) // the bucket is over
			l.Allow(ctx, "k")
			s.promote(func() { ask(l, 500*ms) })
			ask(l, second)
		}, true},
		{"the bucket deleted", func(s *replicated, l *tiered.Limiter) {
			s.Memory.Del(s.Key("api", "k"))
			ask(l, second)
		}, true},
		{"deleted, and made anew by another process", func(s *replicated, l *tiered.Limiter) {
			bucket := s.Key("api", "k")
			s.Memory.Del(bucket)
			call := tiered.Call(bucket, l)
			call.Want, call.Min, call.TTL, call.Fleet = 1, 1, 1e6, 1
			s.Memory.Run(ctx, second, []lua.Call{call}, make([]remote.Result, 1))
			ask(l, second)
		}, true},

		{"nothing", func(_ *replicated, l *tiered.Limiter) { ask(l, 3*second) }, false},
		{"a planned failover that loses nothing", func(s *replicated, l *tiered.Limiter) {
			time.Sleep(10 * ms) // no call is under way
			s.promote(func() {})
			ask(l, second)
		}, false},
		{"idle for so long that the bucket is over", func(s *replicated, l *tiered.Limiter) {
			for range 3 {
				time.Sleep(time.Minute)
				if s.Fields(s.Key("api", "k")) != nil {
					panic("the bucket lives")
				}
				ask(l, second)
			}
		}, false},
		{"direct takes, idle meanwhile", func(_ *replicated, l *tiered.Limiter) {
			for range 5 {
				l.Allow(ctx, "rare")
				time.Sleep(10 * second)
			}
		}, false},
		{"a burst that is raised in an outage in which the key ends", func(s *replicated, l *tiered.Limiter) {
			l.Allow(ctx, "rare")
			s.Memory.Fail(errors.New("down"))
			time.Sleep(time.Minute)
			l.Allow(ctx, "rare")
			limit := l.Policy().Limit
			ok(t, l.SetLimit(limit.WithBurst(50*max(limit.Burst, limit.Tokens))))
			s.Memory.Fail(nil)
			for range 10 {
				l.Allow(ctx, "rare")
				time.Sleep(500 * ms)
			}
		}, false},
		{"our own Reset", func(_ *replicated, l *tiered.Limiter) {
			for range 5 {
				ok(t, l.Reset(ctx, "k"))
				ask(l, 200*ms)
			}
			time.Sleep(10 * second)
			ask(l, 200*ms)
		}, false},
		{"another's Reset", func(s *replicated, l *tiered.Limiter) {
			other := must(tiered.New(s, l.Policy(), nil))
			for range 3 {
				ok(t, other.Reset(ctx, "k"))
				ask(l, 200*ms)
			}
			_ = other.Close(ctx)
		}, false},
		{"evicted, and back while its record lives", func(_ *replicated, l *tiered.Limiter) {
			for i := range 200 {
				l.Allow(ctx, fmt.Sprint("other ", i))
				l.Allow(ctx, "k")
			}
			ask(l, 200*ms)
		}, false},
		{"every third reply lost", func(s *replicated, l *tiered.Limiter) {
			for range 20 {
				s.loseReplies.Store(true)
				ask(l, 30*ms)
				s.loseReplies.Store(false)
				ask(l, 60*ms)
			}
		}, false},
		{"an outage longer than the lease", func(s *replicated, l *tiered.Limiter) {
			s.loseRequests.Store(true)
			ask(l, 10*second)
			s.loseRequests.Store(false)
			ask(l, 5*second)
		}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &replicated{distant: newDistant(ms)}
			options := &tiered.Options{}
			if strings.HasPrefix(c.name, "evicted") {
				options.MaxKeys = 1
			}
			l := limiter(t, watch.Damaged{Store: store}, tiered.Policy{Limit: tiered.PerSecond(150).WithBurst(100)},
				options)
			ask(l, 3*second)
			n := tiered.Dispatch(l.Group()).Node(store.Node(""))
			if l.Stats().Leases.Granted == 0 || tiered.HealthOf(n).StateLosses().Load() > 0 {
				t.Fatalf("%s: %d losses before it", c.name, tiered.HealthOf(n).StateLosses().Load())
			}
			c.event(store, l)
			got := tiered.HealthOf(n).StateLosses().Load()
			t.Logf("%s: %d", c.name, got)
			if c.lost != (got > 0) {
				t.Errorf("%s: %d losses", c.name, got)
			}
		})
	}
}

// In a planned failover by a real Sentinel no call fails for long. But grants of the old primary
// after the new one was chosen are lost. Only the counter shows that.
func TestPlannedSentinelFailoverIsSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("7 s of real time")
	}
	t.Parallel()
	c := redistest.StartSentinel(t)
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: c.Sentinel.Addr})
	defer sentinel.Close()
	// Many calls, so that some reach the old primary when it is none any more: how soon that is
	// known differs.
	policy := tiered.Policy{
		Name: "api", Limit: tiered.PerSecond(2000), FailMode: tiered.FailClosed,
		Lease: tiered.Lease{Period: 5 * ms},
	}
	var all sync.WaitGroup
	limiters := make([]*tiered.Limiter, 3)
	ctx, stop := context.WithCancel(context.Background())
	defer func() { stop(); all.Wait() }()
	for i := range limiters {
		limiters[i] = limiter(t, watch.Damaged{Store: open(t, "sentinel://"+c.Sentinel.Addr+"?master_name="+c.Name)},
			policy, &tiered.Options{Processes: len(limiters)})
		all.Go(func() {
			for ctx.Err() == nil {
				limiters[i].Allow(ctx, "k")
				time.Sleep(500 * time.Microsecond) // real load on real servers
			}
		})
	}
	losses := func() (n int64) {
		for _, l := range limiters {
			for _, node := range l.Group().Stats().Nodes {
				n += node.Faults.StateLosses
			}
		}
		return n
	}
	time.Sleep(second)
	if n := losses(); n > 0 {
		t.Fatalf("%d losses before the failover", n)
	}
	if err := sentinel.Failover(ctx, c.Name).Err(); err != nil {
		t.Fatal(err)
	}
	replica := c.Replica.Client()
	took := soon(t, "the replica is the primary", 15*second, func() bool {
		role, err := replica.Do(ctx, "ROLE").Slice()
		return err == nil && role[0] == "master"
	})
	seen := soon(t, "a loss is seen", 10*second, func() bool { return losses() > 0 })
	t.Logf("promoted after %v, the first loss seen %v later", took, seen)
	time.Sleep(3 * second) // until the sentinel has told everybody, which takes longer on a busy machine
	for tries := 0; ; tries++ {
		n := losses()
		time.Sleep(2 * second)
		more := losses() - n
		if t.Logf("%d losses, and %d within 2 s", n, more); more == 0 {
			break
		}
		if tries == 10 {
			t.Fatal("there is no end of losses after it is over")
		}
	}
	for i, l := range limiters {
		if s := l.Group().Stats(); s.Policies["api"].Leases.Granted == 0 {
			t.Errorf("process %d: %+v", i, s)
		}
	}
}

// Replies state the level as a whole number. A bucket that expired just after it was full is no
// loss. One that was deleted just before is.
func TestLossIsWhatCannotHaveExpired(t *testing.T) {
	for _, del := range []bool{false, true} {
		for _, asks := range [][]time.Duration{
			{0, 3600 * ms, 9200 * ms}, // 2, then 1.9 by the script: full after 4.4 s more, and over a second later
			{0, 1900 * ms, 8300 * ms, 13_000 * ms},
			{0, 0, 0, 13_100 * ms},
		} {
			synctest.Test(t, func(t *testing.T) {
				store := newDistant(ms)
				l := limiter(t, watch.Damaged{Store: store},
					tiered.Policy{Name: "p", Limit: tiered.Limit{Tokens: 1, Per: 4 * second, Burst: 3}}, nil)
				start := time.Now()
				for _, at := range asks {
					time.Sleep(at - time.Since(start))
					want(t, l.Allow(ctx, "k"), tiered.Granted)
				}
				if del {
					time.Sleep(2 * second)
					store.Memory.Del(store.Key("p", "k"))
					want(t, l.Allow(ctx, "k"), tiered.Granted)
				}
				lost := int64(0)
				for _, n := range l.Group().Stats().Nodes {
					lost += n.Faults.StateLosses
				}
				if lost != map[bool]int64{true: 1, false: 0}[del] {
					t.Errorf("%v, deleted %v: %d losses", asks, del, lost)
				}
			})
		}
	}
}

// A new window begins with the count of the old one, and is written with its first request, also if
// that is refused. When the key expires with it, that is no loss.
func TestWindowThatOnlyRefusedIsNotLost(t *testing.T) {
	for _, limits := range [][2]tiered.Limit{
		{tiered.PerSecond(30), {Tokens: 1, Per: 30 * second}},
		{{Tokens: 30, Per: 30 * second, Precision: 100 * ms}, {Tokens: 30, Per: 30 * second, Precision: 30 * second}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := tiered.Policy{Name: "api", Algorithm: tiered.SlidingWindow, Limit: limits[0]}
			l := limiter(t, newDistant(ms), p, nil)
			want(t, l.AllowN(ctx, "k", 30), tiered.Granted)
			time.Sleep(limits[0].Per - second)
			p.Limit = limits[1]
			ok(t, l.SetPolicy(p))
			d := l.Allow(ctx, "k")
			want(t, d, tiered.Limited)
			time.Sleep(max(d.RetryAfter, 7*second)) // no refusal is believed for longer than 5 s
			want(t, l.Allow(ctx, "k"), tiered.Granted)
			for _, n := range l.Group().Stats().Nodes {
				if n.Faults.StateLosses > 0 {
					t.Errorf("%v, then %v: %d losses", limits[0], limits[1], n.Faults.StateLosses)
				}
			}
		})
	}
}

// What a key has counted ends sooner than it was told, because its limit goes by another calendar
// now: that of another zone, from another billing day or another day of the week. When the key
// expires with that, it is no loss. One that is deleted is.
func TestKeyThatEndsByAnotherCalendar(t *testing.T) {
	per := func(c tiered.Calendar) tiered.Limit { return tiered.Limit{Tokens: 100, Calendar: c} }
	for _, row := range []struct {
		from, to tiered.Calendar
		ends     time.Duration // after the beginning of a bubble, which is that of Saturday, 1 January 2000
	}{
		{tiered.Calendar{Unit: tiered.Day}, tiered.Calendar{Unit: tiered.Day, Zone: "Asia/Tokyo"}, 15 * time.Hour},
		{tiered.Calendar{Unit: tiered.Week, Day: 3}, tiered.Calendar{Unit: tiered.Week, Day: 7}, 24 * time.Hour},
		{tiered.Calendar{Unit: tiered.Month}, tiered.Calendar{Unit: tiered.Month, Day: 2}, 24 * time.Hour},
		{tiered.Calendar{Unit: tiered.Year}, tiered.Calendar{Unit: tiered.Year, Zone: "Etc/GMT+3"}, 3 * time.Hour},
	} {
		for _, way := range []string{"SetPolicy", "PerKey", "WithLimit"} {
			for _, size := range []int64{0, tiered.NoLease} {
				for _, deleted := range []bool{false, true} {
					bubble(t, fmt.Sprint(row.from.Unit, way, size, deleted), func(t *testing.T) {
						ends := time.Now().Add(row.ends)
						time.Sleep(row.ends - 10*second)
						store, limit := newDistant(ms), per(row.from)
						p := tiered.Policy{Name: "api", Limit: limit, Algorithm: tiered.FixedWindow, Lease: tiered.Lease{Size: size}}
						if way == "PerKey" {
							p.PerKey = func(string) tiered.Limit { return limit }
						}
						l := limiter(t, watch.Damaged{Store: store}, p, nil)
						key := l.For("k")
						use := func() {
							for range 30 {
								want(t, key.Allow(ctx), tiered.Granted)
								time.Sleep(ms)
							}
						}
						use()
						limit = per(row.to)
						key = relimited(t, l, key, way, limit)
						if use(); deleted {
							for _, b := range store.Buckets() {
								store.Memory.Del(b)
							}
						} else {
							time.Sleep(time.Until(ends.Add(5 * second)))
						}
						if use(); (node(l).Faults.StateLosses > 0) != deleted {
							t.Errorf("%d losses", node(l).Faults.StateLosses)
						}
					})
				}
			}
		}
	}
}

// A Redis that comes back empty after an outage is reported: its keys may admit a burst more. One
// that has kept its data is not, nor one that others have used meanwhile.
func TestRedisThatComesBackEmpty(t *testing.T) {
	t.Parallel()
	for _, algorithm := range algorithms {
		for _, mode := range failModes {
			for _, down := range []time.Duration{2 * time.Second, 10 * time.Second, time.Minute} {
				if testing.Short() && down < time.Minute {
					continue
				}
				for _, what := range []string{"empty", "kept", "used by others"} {
					t.Run(fmt.Sprintf("%v, %v, %v, %s", algorithm, mode, down, what), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) { comesBack(t, algorithm, mode, down, what) })
					})
				}
			}
		}
	}
}

func comesBack(t *testing.T, algorithm tiered.Algorithm, mode tiered.FailMode, down time.Duration, what string) {
	store, links, limiters := remote.NewMemory(), make([]*afflicted, 3), make([]*tiered.Limiter, 3)
	var log logged // of the first process
	for i := range links {
		links[i] = &afflicted{distant: &distant{Memory: store}}
		var o *tiered.Options
		if i == 0 {
			o = &tiered.Options{Logger: log.logger()}
		}
		p := tiered.Policy{Limit: tiered.PerHour(1000), Algorithm: algorithm, FailMode: mode}
		limiters[i] = limiter(t, watch.Damaged{Store: links[i]}, p, o)
	}
	ask := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(max(20*ms, d/500)) {
			for i, l := range limiters {
				l.Allow(ctx, "hot")
				l.AllowN(ctx, fmt.Sprint("rare", i), 20)
			}
		}
	}
	time.Sleep(second)
	ask(6 * second) // most of the limit
	for i, l := range links {
		if i == 0 || what != "used by others" {
			l.cut(errors.New("connection refused"))
		}
	}
	ask(down)
	if what == "empty" {
		for _, b := range store.Buckets() {
			store.Del(b)
		}
	}
	for _, l := range links {
		l.heal()
	}
	ask(5 * second)
	synctest.Wait()
	losses, line := node(limiters[0]).Faults.StateLosses, strings.Contains(log.String(), "redis lost buckets")
	if empty := what == "empty"; (losses > 0) != empty || line != empty {
		t.Errorf("%d losses were counted; the log:\n%s", losses, log.String())
	}
}
