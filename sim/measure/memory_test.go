package measure_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/measure"
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
	m := measure.New(made(func(x *scenario.Scenario) {
		x.Limits[0] = scenario.Limit{Name: "api", Limit: tiered.PerHour(1).WithBurst(10)}
	}))
	before := heap()
	for i, n := range names {
		ask(m, time.Duration(i)*10*time.Microsecond, 0, 0, n, 1, 1)
	}
	per := (heap() - before) / keys
	t.Logf("%d bytes per key", per)
	if per > 620 {
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
