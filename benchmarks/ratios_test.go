package benchmarks

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
)

// cores is the number of processors that the bounds are meant for.
const cores = 2

// forRatios begins a test whose lines are claims. They take minutes, so the short tests leave them
// out.
func forRatios(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("measures for some seconds")
	}
	before := runtime.GOMAXPROCS(cores)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// atMost prints a line and fails the test when its claim is not true.
func atMost(t *testing.T, name string, value, bound float64) {
	t.Helper()
	claim(t, ratio.Line{Name: name, Value: value, Bound: bound})
}

// some is atMost for what must be there: 0 is what a meter says that sees nothing.
func some(t *testing.T, name string, value, bound float64) {
	t.Helper()
	if value == 0 {
		value = math.NaN()
	}
	atMost(t, name, value, bound)
}

// atLeast is atMost for what should be large.
func atLeast(t *testing.T, name string, value, bound float64) {
	t.Helper()
	claim(t, ratio.Line{Name: name, Value: value, Least: true, Bound: bound})
}

// tell prints a line that has no bound.
func tell(t *testing.T, name string, value float64) {
	t.Helper()
	claim(t, ratio.Line{Name: name, Value: value, Bound: ratio.NoBound})
}

func claim(t *testing.T, l ratio.Line) {
	t.Helper()
	fmt.Println(l)
	if !l.Holds() {
		t.Errorf("%s is %v, which misses its bound", l.Name, l.Value)
	}
}

// slice is shorter than what an operating system gives to one process before another has its turn,
// so that among many turns there are some that nothing interrupted, on a busy machine too.
const slice = 2 * time.Millisecond

// brief is for decisions in the process, by goroutines that hardly meet. If those of a peer do, at
// its lock, its fastest turn is one in which they missed each other, which is to its favor.
func brief(goroutines int) Turn {
	return Turn{Rounds: 9, Tries: 45, Slice: slice, Goroutines: goroutines, WallOnly: true}
}

// crowded is for a goroutine on each processor that all want the same: the median of as many turns.
var crowded = Turn{Rounds: 9 * 45, Slice: slice, Goroutines: cores, WallOnly: true}

// Lines ÷ bare rate.Limiter.Allow depend on the machine, because that reads two clocks and a
// decision of ours one. So their bounds have room: where hot is 0.61 here, it was 0.71 on another
// machine of the same kind, and denied 0.78 in place of 0.61.
func TestRatiosHotKey(t *testing.T) {
	forRatios(t)
	base := time.Now()
	var since time.Duration
	read := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			since += time.Since(base)
		}
	})
	tell(t, "reading the monotonic clock, ns", float64(read.T.Nanoseconds())/float64(read.N))
	ours, bare := Start(t, Ours, Hot), Start(t, Bare, Hot)
	atMost(t, "hot key, 1 goroutine: ours ÷ bare rate.Limiter.Allow", Quotient(brief(1).Against(t, ours, bare), Wall), 0.8)
	atMost(t, "hot key, parallel, 2 cores: ours ÷ bare rate.Limiter.Allow",
		Quotient(crowded.Against(t, ours, bare), Wall), 0.8)
	atMost(t, "hot key: allocations per decision", testing.AllocsPerRun(200_000, func() { ours.Drive(1, 1) }), 0)
}

func TestRatiosDeniedKey(t *testing.T) {
	forRatios(t)
	pairs := brief(1).Against(t, Start(t, Ours, Denied), Start(t, Bare, Hot))
	atMost(t, "denied hot key ÷ bare rate.Limiter.Allow", Quotient(pairs, Wall), 0.85)
}

func TestRatiosManyKeys(t *testing.T) {
	forRatios(t)
	pairs := brief(cores).Against(t, Start(t, OursHeld, Warm), Start(t, BareLRU, Warm))
	atMost(t, "100 000 keys leased, random, parallel: ours ÷ (x/time/rate + golang-lru)", Quotient(pairs, Wall), 0.8)
}

// TestRatiosDown has a claim for each fail mode, once the breaker is open.
func TestRatiosDown(t *testing.T) {
	forRatios(t)
	bare := Start(t, Bare, Down)
	for _, mode := range []struct {
		contestant, name string
		bound            float64
	}{
		{FailOpen, "FailOpen", 0.85},
		{FailClosed, "FailClosed", 0.85},
		{FailLocal, "FailLocal", 1.8},
	} {
		pairs := brief(1).Against(t, Start(t, mode.contestant, Down), bare)
		atMost(t, mode.name+" with the breaker open ÷ bare rate.Limiter.Allow", Quotient(pairs, Wall), mode.bound)
	}
}
