package tiered_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A Redis that answers late is a Redis that answers: a process gets ready, its leases come in the
// background, and three hundred tokens are three hundred, however far Redis is. The breaker stays
// closed, or closes again within a second. A frozen Redis is then found by three calls that take
// twice a round trip.
func TestLateRedisIsNoOutage(t *testing.T) {
	steady := func(d time.Duration) func(time.Duration) time.Duration {
		return func(time.Duration) time.Duration { return d }
	}
	for _, c := range []struct {
		name  string
		trip  func(at time.Duration) time.Duration
		found time.Duration // within which a frozen Redis is found
	}{
		{"12 ms", steady(12 * ms), 200 * ms},
		{"30 ms", steady(30 * ms), 200 * ms},
		{"60 ms", steady(60 * ms), 400 * ms},
		{"120 ms", steady(120 * ms), 750 * ms},
		{"250 ms", steady(250 * ms), 1600 * ms},
		{"20 to 100 ms", func(at time.Duration) time.Duration {
			return 20*ms + time.Duration(rand.New(rand.NewPCG(1, uint64(at))).IntN(int(80*ms)))
		}, 700 * ms},
		{"slow from 3 to 6 s, and fast again", func(at time.Duration) time.Duration {
			if at > 3*second && at < 6*second {
				return 120 * ms
			}
			return ms
		}, 200 * ms},
	} {
		bubble(t, c.name, func(t *testing.T) {
			store := newCreeping(c.trip(0))
			var log bytes.Buffer
			var mu sync.Mutex
			var changes []string
			l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(300).WithBurst(300)},
				&tiered.Options{
					Processes: 3, Logger: slog.New(slog.NewTextHandler(&log, nil)),
					Trace: &tiered.Trace{State: func(e tiered.Event) {
						mu.Lock()
						defer mu.Unlock()
						changes = append(changes, e.What)
					}},
				})
			start := time.Now()
			for ready := false; !ready; ready = l.Group().Ping(ctx) == nil {
				if time.Since(start) > 3*second {
					t.Fatal("not ready after 3 s")
				}
			}
			ready := time.Since(start)
			admitted, longest := 0, time.Duration(0)
			for time.Since(start) < 20*second {
				store.set(c.trip(time.Since(start)))
				begun := time.Now()
				if l.Allow(ctx, "k").Allowed {
					admitted++
				}
				longest = max(longest, time.Since(begun))
				time.Sleep(10 * ms)
			}
			node := tiered.Dispatch(l.Group()).Nodes()[0]
			if node.State() != failover.Closed {
				t.Errorf("the breaker is %v", node.State())
			}
			mu.Lock()
			before := len(changes)
			mu.Unlock()
			store.loseRequests.Store(true)
			frozen := time.Now()
			for i := 0; node.State() == failover.Closed && time.Since(frozen) < 10*second; i++ {
				l.Allow(ctx, "cold"+string(rune('a'+i%26)))
				time.Sleep(ms)
			}
			found := time.Since(frozen)
			t.Logf("%s: ready after %v, %d admitted, longest %v, %d changes of the breaker; frozen, it opened after %v",
				c.name, ready, admitted, longest, before, found)
			if admitted < 298 || admitted > 302 {
				t.Errorf("%d admitted of 300", admitted)
			}
			if longest > tiered.DefaultBudget {
				t.Errorf("a decision took %v", longest)
			}
			if before > 4 {
				t.Errorf("the breaker changed %d times: %v", before, changes)
			}
			if found > c.found {
				t.Errorf("a frozen Redis was found after %v", found)
			}
			store.set(ms)           // it will be near, which the trips of before the outage do not say
			time.Sleep(11 * second) // longer than it is watched whether the node is still far
			store.loseRequests.Store(false)
			time.Sleep(5 * second)
			synctest.Wait() // for what is being logged
			if c.trip(0) > tiered.DefaultBudget && strings.Count(log.String(), "raise Budget") != 1 {
				t.Errorf("want one line that tells of it: %s", log.String())
			}
		})
	}
}

// lateStore is a Memory that answers after between one and two times its distance. A call is
// executed though nobody waits for its answer any more.
type lateStore struct {
	*remote.Memory
	distance atomic.Int64
}

// ways draws how long a request and its answer take.
func (s *lateStore) ways() (there, back time.Duration) {
	d := s.distance.Load() / 2
	r := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	return time.Duration(d + r.Int64N(d+1)), time.Duration(d + r.Int64N(d+1))
}

func (s *lateStore) Run(_ context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	there, back := s.ways()
	mine, answers := append([]lua.Call(nil), calls...), make([]remote.Result, len(calls))
	done := make(chan struct{}, 1)
	go func() {
		time.Sleep(there)
		s.Memory.Run(ctx, timeout, mine, answers)
		time.Sleep(back)
		done <- struct{}{}
	}()
	select {
	case <-done:
		copy(results, answers)
	case <-time.After(timeout):
		for i := range calls {
			results[i] = remote.Result{Err: context.DeadlineExceeded}
		}
	}
}

func (s *lateStore) Presence(ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process) (remote.Census, error) {
	there, back := s.ways()
	if there+back > timeout {
		time.Sleep(timeout)
		return remote.Census{}, context.DeadlineExceeded
	}
	time.Sleep(there + back)
	return s.Memory.Presence(ctx, timeout, n, p)
}

// A Redis that answers within a second decides, however rare the requests are and however near it
// was before: some seconds later leases are there in time. Nobody calls Ping.
func TestLateRedisDecidesRareRequests(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		before  time.Duration // its distance for the first ten seconds
		far     time.Duration
		request time.Duration // how often one comes
		ready   time.Duration // when leases are there in time
		budget  time.Duration // 0 is the default
		hurry   time.Duration // how long callers wait, if less than budget
	}{
		{"late from the first request on", 240 * ms, 240 * ms, 160 * ms, 8 * time.Second, 0, 0},
		{"far from the first request on", 440 * ms, 440 * ms, 80 * ms, 8 * time.Second, 0, 0},
		{"late after it was near", ms, 120 * ms, 160 * ms, 8 * time.Second, 0, 0},
		{"far after it was near", ms, 440 * ms, 80 * ms, 14 * time.Second, 0, 0},
		{"far after it was near, and asked often", ms, 440 * ms, 20 * ms, 14 * time.Second, 0, 0},
		{"late, and callers wait for long", 240 * ms, 240 * ms, 200 * ms, 8 * time.Second, 100 * ms, 0},
		{"late, and asked twice a second", 240 * ms, 240 * ms, 500 * ms, 8 * time.Second, 0, 0},
		{"far, and asked twice a second", 440 * ms, 440 * ms, 500 * ms, 14 * time.Second, 100 * ms, 0},
		{"as far as callers wait", 66 * ms, 66 * ms, 500 * ms, 8 * time.Second, 100 * ms, 0},
		{"as far as callers in a hurry wait", 33 * ms, 33 * ms, 500 * ms, 8 * time.Second, 100 * ms, 50 * ms},
	} {
		bubble(t, c.name, func(t *testing.T) {
			store := &lateStore{Memory: remote.NewMemory()}
			store.distance.Store(int64(c.before))
			l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)}, &tiered.Options{Budget: c.budget}))
			defer func() {
				_ = l.Close(ctx)
				time.Sleep(3 * time.Second) // for what is under way
			}()
			if c.before != c.far {
				for range 100 {
					time.Sleep(100 * ms)
					l.Allow(ctx, "k")
				}
				store.distance.Store(int64(c.far))
			}
			asked, decided := 0, 0
			for start := time.Now(); time.Since(start) < c.ready+8*time.Second; time.Sleep(c.request) {
				ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.hurry, time.Minute))
				d := l.Allow(ctx, "k")
				cancel()
				if time.Since(start) > c.ready {
					if asked++; d.Tier != tiered.Failover {
						decided++
					}
				}
			}
			part := float64(decided) / float64(asked)
			t.Logf("%.3f of %d decided by Redis' tokens", part, asked)
			if part < 0.95 {
				t.Errorf("only %d of %d", decided, asked)
			}
		})
	}
}

// Far from Redis a new connection takes longer than Timeout: four round trips of 20 ms, with a
// Timeout of 50 ms. The first calls fail, and later ones use the connections that the first calls
// have made.
func TestFarFromRedis(t *testing.T) {
	distance := faultnet.New(1)
	ok(t, distance.Set(faultnet.Faults{Delay: 10 * time.Millisecond}))
	client := redis.NewClient(redistest.Start(t).Options(redis.Options{
		ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1,
		Dialer: distance.Dialer((&net.Dialer{}).DialContext),
	}))
	t.Cleanup(func() { _ = client.Close() })
	l := limiter(t, remote.NewRedis(client, nil), tiered.Policy{Name: "far", Limit: tiered.PerSecond(1e6)}, nil)
	var d tiered.Decision
	granted := 0 // in a row
	for end := time.Now().Add(10 * time.Second); granted < 500 && time.Now().Before(end); {
		if d = l.Allow(ctx, "k"); d.Reason == tiered.Granted {
			granted++
		} else {
			granted = 0
		}
		time.Sleep(time.Millisecond)
	}
	if granted < 500 {
		t.Errorf("the last Decision is %+v, want Redis to decide", d)
	}
}

// creeping is a store whose round trip can be changed while it runs.
type creeping struct {
	*distant
	way atomic.Int64 // ns, one way
}

func newCreeping(trip time.Duration) *creeping {
	s := &creeping{distant: newDistant(2)} // of 2 ns: tail makes it what is wanted
	s.set(trip)
	s.tail = func() float64 { return float64(s.way.Load()) }
	return s
}

func (s *creeping) set(trip time.Duration) { s.way.Store(int64(trip / 2)) }
