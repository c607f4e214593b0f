package measure

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key that is not at rest takes what the doc of Meter says, and a request takes nothing for good.
func TestMemory(t *testing.T) {
	const keys = 100_000
	names := make([]string, keys)
	for i := range names {
		names[i] = name(i)
	}
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	m := New(made(func(x *scenario.Scenario) {
		x.Limits[0] = scenario.Limit{Name: "api", Tokens: 1, Per: scenario.Duration(time.Hour), Burst: 10}
	}))
	before := heap()
	for i, n := range names {
		ask(m, time.Duration(i)*10*time.Microsecond, 0, 0, n, 1, 1)
	}
	per := (heap() - before) / keys
	t.Logf("%d bytes per key", per)
	if per > 600 {
		t.Errorf("a key takes %d bytes", per)
	}
	before = heap()
	for i := range 3 * keys {
		ask(m, 2*s+time.Duration(i)*10*time.Microsecond, i%50, 0, names[i%keys], 1, 1)
	}
	if more := heap() - before; more > 200_000 {
		t.Errorf("%d requests of known keys take %d bytes", 3*keys, more)
	}
	runtime.KeepAlive(m)
}

// All methods at once: the race detector looks on, and the sums are right.
func TestConcurrently(t *testing.T) {
	m := New(made(twoLimits))
	var all sync.WaitGroup
	const processes, requests = 8, 500
	for p := range processes {
		all.Go(func() {
			m.Joined(0, p)
			for i := range requests {
				at := time.Duration(i)*50*ms + 1
				r := m.Asked(at, p, 0, name(i%5), 1)
				m.Called(at, p, 1)
				m.Granted(at, p, 1)
				m.Breaker(at, p, []string{"open", "probing", "closed"}[i%3])
				m.Happened(at, "clock_step")
				m.Decided(at, r, granted)
				if i == requests/2 {
					m.Fault(at, 0, p%2 == 1)
				}
				m.Sample(at, p, stats("api", tiered.PolicyStats{Granted: int64(i) + 1, Spent: int64(i) + 1}), i == requests-1)
			}
			m.Died(29*s, p)
		})
	}
	all.Wait()
	r := m.Report(30 * s)
	want(t, "admitted", r.Metrics.Admitted, processes*requests)
	want(t, "unaccounted", r.Metrics.Unaccounted, 0)
	want(t, "lost", count(t, r, "lease_lost"), 0)
	near(t, "calls", r.Metrics.RedisCalls*(30*s-1).Seconds(), processes*requests)
}
