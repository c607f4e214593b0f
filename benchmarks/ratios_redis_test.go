package benchmarks

import (
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

// crowd is as many goroutines as keep Redis busy.
const crowd = 16

// TestRatiosCost compares the processor time of a hot key with that of redis_rate, which asks Redis
// each time, and with that of the only peer that leases. The lines have no bound, because the
// peers' cost is system calls and ours is none: redis_rate ÷ ours was 241 on one machine and 76 on
// another, at the same commit.
func TestRatiosCost(t *testing.T) {
	forRatios(t)
	turn := Turn{Rounds: 15, Slice: 150 * time.Millisecond, Goroutines: crowd}
	ours := Start(t, Ours, Hot)
	tell(t, "client CPU per decision, hot key: redis_rate ÷ ours",
		Quotient(turn.Against(t, Start(t, RedisRate, Hot), ours), ClientCPU))
	tell(t, "client CPU per decision, hot key: vearne batch 100 ÷ ours",
		Quotient(turn.Against(t, Start(t, Vearne, Hot), ours), ClientCPU))
}

// TestRatiosCommands has one process ask for a hot key as fast as it can.
func TestRatiosCommands(t *testing.T) {
	forRatios(t)
	ours := Start(t, Ours, Hot)
	n := Turn{Slice: time.Second, Goroutines: crowd}.sliceOf(t, ours)
	var perDecision, perSecond []float64
	for range 5 {
		// A second has some four renewals in it, and presence every third.
		u := ours.Measure(t, crowd, n)
		ours.Check(t, u)
		perDecision = append(perDecision, Per(u, u.Commands))
		perSecond = append(perSecond, float64(time.Second)/Wall(u))
	}
	tell(t, "decisions per second, hot key, one process at full speed", ratio.Median(perSecond))
	some(t, "Redis commands per allowed decision, hot key, one process at full speed", ratio.Median(perDecision), 0.0005)
}

// TestRatiosColdKeys has the cost of a call. Without standing shares each decision about a rarely
// used key is one, as with redis_rate. What users with shares pay is in TestRatiosUsers.
func TestRatiosColdKeys(t *testing.T) {
	forRatios(t)
	ours, peer := Start(t, Ours, Cold), Start(t, RedisRate, Cold)
	pairs := Turn{Rounds: 31, Slice: 150 * time.Millisecond, Goroutines: crowd}.Against(t, ours, peer)
	atLeast(t, "cold random keys without standing shares, 16 goroutines, decisions/s: ours ÷ redis_rate",
		1/Quotient(pairs, Wall), 1)
	atMost(t, "cold random keys without standing shares, 16 goroutines, server CPU per decision: ours ÷ redis_rate",
		Quotient(pairs, ServerCPU), 1.2)

	pairs = Turn{Rounds: 101, Slice: 20 * time.Millisecond, Goroutines: 1, WallOnly: true}.Against(t, ours, peer)
	atMost(t, "one cold key without standing shares, 1 goroutine, latency: ours ÷ redis_rate", Quotient(pairs, Wall), 1.5)

	one := Turn{Rounds: 31, Slice: 60 * time.Millisecond, Goroutines: 1}
	tell(t, "one cold key without standing shares, 1 goroutine, client CPU: ours ÷ redis_rate",
		Quotient(one.Against(t, ours, peer), ClientCPU))
	both := Start(t, OursBoth, Cold)
	tell(t, "All over two cold keys of one node, 1 goroutine: latency ÷ that of one key", Quotient(one.Against(t, both, ours), Wall))
}
