package tiered_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// lateStore is a Memory that answers after between one and two times its distance. A call is executed though nobody waits
// for its answer any more.
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
		s.Memory.Run(context.Background(), timeout, mine, answers)
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

// A Redis that answers within a second decides, however rare the requests are and however near it was before: some seconds
// later leases are there in time. Nobody calls Ping.
func TestLateRedisDecidesRareRequests(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		before  time.Duration // its distance for the first ten seconds
		far     time.Duration
		request time.Duration // how often one comes
		ready   time.Duration // when leases are there in time
		budget  time.Duration // 0 is the default
	}{
		{"late from the first request on", 240 * ms, 240 * ms, 160 * ms, 8 * time.Second, 0},
		{"far from the first request on", 440 * ms, 440 * ms, 80 * ms, 8 * time.Second, 0},
		{"late after it was near", ms, 120 * ms, 160 * ms, 8 * time.Second, 0},
		{"far after it was near", ms, 440 * ms, 80 * ms, 14 * time.Second, 0},
		{"far after it was near, and asked often", ms, 440 * ms, 20 * ms, 14 * time.Second, 0},
		{"late, and callers wait for long", 240 * ms, 240 * ms, 200 * ms, 8 * time.Second, 100 * ms},
		{"late, and asked twice a second", 240 * ms, 240 * ms, 500 * ms, 8 * time.Second, 0},
		{"far, and asked twice a second", 440 * ms, 440 * ms, 500 * ms, 14 * time.Second, 100 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &lateStore{Memory: remote.NewMemory()}
				store.distance.Store(int64(c.before))
				l, err := tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(1000)}, &tiered.Options{Budget: c.budget})
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					_ = l.Close(context.Background())
					time.Sleep(3 * time.Second) // for what is under way
				}()
				if c.before != c.far {
					for range 100 {
						time.Sleep(100 * ms)
						l.Allow(t.Context(), "k")
					}
					store.distance.Store(int64(c.far))
				}
				asked, decided := 0, 0
				for start := time.Now(); time.Since(start) < c.ready+8*time.Second; time.Sleep(c.request) {
					d := l.Allow(t.Context(), "k")
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
		})
	}
}
