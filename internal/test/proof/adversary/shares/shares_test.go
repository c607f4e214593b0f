package shares_test

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary"
	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/adversary/shares"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

var (
	schedules = flag.Int("schedules", 100_000, "random schedules on Memory; 1/100 as many on Redis")
	from      = flag.Uint64("from", 1, "the seed of the first random schedule")
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/redis/go-redis/v9/maintnotifications.(*CircuitBreakerManager).cleanupLoop"))
}

// steps is how long a schedule is. A step may be a minute of regular polls.
const steps = 100

// play plays the schedules of count seeds, each worker in stores of its own.
func play(t *testing.T, count int, stores func(worker int) shares.Stores) {
	r := adversary.Drive(*from, count, func(seed uint64) shares.Schedule { return shares.Random(seed, steps) }, stores)
	for _, broken := range r.Broken {
		t.Errorf("after %d schedules: %s", r.Played, broken)
	}
	if !t.Failed() {
		t.Logf("%d schedules, %d admissions, violations: 0", r.Played, r.Count)
	}
}

func TestSchedulesOnMemory(t *testing.T) {
	count := *schedules
	if testing.Short() {
		count /= 25
	}
	// In a bubble Memory's own clock stands still: the table's life is counted by it.
	synctest.Test(t, func(t *testing.T) {
		play(t, count, func(int) shares.Stores { return adversary.OnMemory })
	})
}

func TestSchedulesOnRedis(t *testing.T) {
	server := redistest.StartOpen(t, "--databases", strconv.Itoa(runtime.GOMAXPROCS(0))) // one for each worker
	count := *schedules / 100
	if testing.Short() {
		count /= 10
	}
	play(t, count, func(worker int) shares.Stores {
		c := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Socket, DB: worker})
		t.Cleanup(func() { _ = c.Close() })
		s := adversary.OnRedis(c)
		return func() *adversary.Store { return s }
	})
}
