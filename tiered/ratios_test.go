package tiered_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// roundTrip is that of the fleets that figures are published of: a Redis in the same data center.
const roundTrip = 600 * time.Microsecond

// The limits of those fleets: one whose leases last for the default period, and one whose burst
// makes them short (burst/4r is 50 ms), which is where hold-offs and calls are dear.
var (
	roomy    = tiered.PerSecond(20_000).WithBurst(20_000)
	thousand = tiered.PerSecond(1000).WithBurst(200)
)

// TestRatios has the lines of `make ratios` that are about several processes which share a limit: a
// fleet on Memory at the end of a wire, in virtual time, so they repeat exactly on any machine. A
// line is the median of the seeds, but for what must never happen: that is the worst seed's; and
// what waited is that of all seeds, for the median of rare events is 0 too soon. The wire of that
// line stalls now and then: on an even one nothing would wait by the formula of the low-water mark
// alone, on this one 87 of a million do, and with the quarter of the grant none.
func TestRatios(t *testing.T) {
	notUnderRace(t)
	type line struct {
		ratio.Line
		of func(figures) float64
		by func([]figures, func(figures) float64) float64
	}
	refused := line{
		ratio.Line{Name: "refused though an ideal limiter admits them, of 100 requests", Bound: 1},
		figures.refusals, median,
	}
	within := line{ratio.Line{Name: "tokens over the bound in the worst interval", Bound: 0}, figures.excess, most}
	uses := func(least float64) line {
		return line{ratio.Line{Name: "utilisation", Least: true, Bound: least}, figures.use, median}
	}
	perDecision := func(most float64) line {
		return line{ratio.Line{Name: "Redis commands per decision", Bound: most}, figures.calls, median}
	}
	perToken := func(most float64) line {
		return line{ratio.Line{Name: "Redis commands per admitted token", Bound: most}, figures.price, median}
	}
	per2s := tiered.Limit{Tokens: 1000, Per: 2 * second}
	for _, c := range []struct {
		name  string
		run   fleetRun
		seeds uint64
		lines []line
	}{
		{"10 processes at 0.8 of 20000/s", fleetRun{limit: roomy, demand: 0.8, stalls: true}, 5, []line{
			{ratio.Line{Name: "Redis commands per allowed decision", Bound: 0.01}, figures.price, median},
			{ratio.Line{Name: "decisions that waited on Redis after 2 s, per million", Bound: 10}, figures.waits, mean},
		}},
		{"10 processes at 3 times 1000/s", fleetRun{limit: thousand, demand: 3, length: 30 * second}, 8, []line{
			{ratio.Line{Name: "Redis commands per admitted token", Bound: 0.3}, figures.price, median},
			{ratio.Line{Name: "utilisation", Least: true, Bound: 0.985}, figures.use, median},
			{ratio.Line{Name: "tokens over the bound in the worst interval", Bound: 0}, figures.excess, most},
		}},
		{
			"the hot one of 10 processes changes, 1.2 times 1000/s",
			fleetRun{limit: thousand, demand: 1.2, hot: true},
			5,
			[]line{
				{ratio.Line{Name: "utilisation", Least: true, Bound: 0.98}, figures.use, median},
				{ratio.Line{Name: "tokens over the bound in the worst interval", Bound: 0}, figures.excess, most},
			},
		},
		{
			"the hot one of 10 processes changes, 0.8 of 1000/s",
			fleetRun{limit: thousand, demand: 0.8, hot: true},
			5,
			[]line{
				{ratio.Line{Name: "utilisation", Least: true, Bound: 0.999}, figures.use, median},
				{ratio.Line{Name: "tokens over the bound in the worst interval", Bound: 0}, figures.excess, most},
			},
		},
		// Users below their limit are served, with leases too. An ideal limiter refuses none of
		// these, or next to none.
		{"8 processes at 0.8 of 1000 per 2 s, a sliding window", fleetRun{
			algorithm: tiered.SlidingWindow, limit: per2s, processes: 8, demand: 0.8, length: 20 * second,
		}, 5, []line{refused, perDecision(0.1), within}},
		{"8 processes at 0.8 of 500/s, a sliding window", fleetRun{
			algorithm: tiered.SlidingWindow, limit: tiered.PerSecond(500), processes: 8, demand: 0.8, length: 20 * second,
		}, 5, []line{refused, perDecision(0.25), within}},
		{"8 processes at 0.8 of 1000 per 2 s, a fixed window", fleetRun{
			algorithm: tiered.FixedWindow, limit: per2s, processes: 8, demand: 0.8, length: 20 * second,
		}, 5, []line{refused, perDecision(0.1), within}},
		{"8 processes at 3 times 1000 per 2 s, a sliding window", fleetRun{
			algorithm: tiered.SlidingWindow, limit: per2s, processes: 8, demand: 3, length: 20 * second,
		}, 5, []line{
			uses(0.98), perToken(0.42), within, // at most one more in a cycle: who is refused looks for what others may give back
		}},
		{"8 processes at 3 times 500/s, a sliding window", fleetRun{
			algorithm: tiered.SlidingWindow, limit: tiered.PerSecond(500), processes: 8, demand: 3, length: 20 * second,
		}, 5, []line{uses(0.95), perToken(1), within}},
		// Most of the demand is in one of 10 processes, another one each second. Commands are at
		// most 1.5 times what they were before, when 0.92, 0.93 and 0.88 of the limit was used.
		{"skew that moves each second, 3 times 2000/s, burst 500", fleetRun{
			limit: tiered.PerSecond(2000).WithBurst(500), demand: 3, turns: true,
		}, 5, []line{uses(0.97), perToken(0.1), within}},
		{"skew that moves each second, 3 times 2000/s, burst 2000", fleetRun{
			limit: tiered.PerSecond(2000), demand: 3, turns: true, length: 30 * second,
		}, 5, []line{uses(0.97), perToken(0.028), within}},
		{"skew that moves each second, 3 times 2000/s, burst 500, costs of 1 to 50", fleetRun{
			limit: tiered.PerSecond(2000).WithBurst(500), demand: 3, turns: true, dear: 50,
		}, 5, []line{uses(0.97), perToken(0.056), within}},
		{"surges, 3 times 1000/s, burst 200", fleetRun{
			limit: thousand, demand: 3, surges: true, length: 30 * second,
		}, 5, []line{uses(0.95), perToken(0.28), within}},
		{"surges, 3 times 1000/s, burst 1000", fleetRun{
			limit: tiered.PerSecond(1000), demand: 3, surges: true, length: 30 * second,
		}, 5, []line{uses(0.93), perToken(0.056), within}},
		{"one process at 50/s, burst 5, costs of 1 to 3", fleetRun{
			limit: tiered.PerSecond(50).WithBurst(5), processes: 1, demand: 1, dear: 3, length: 60 * second,
		}, 5, []line{uses(0.99), within}},
		{"one process at 50/s, burst 20", fleetRun{
			limit: tiered.PerSecond(50).WithBurst(20), processes: 1, demand: 1, length: 60 * second,
		}, 5, []line{uses(0.99), within}},
		{"one process at 500/s, burst 100, costs of 1 to 3", fleetRun{
			limit: tiered.PerSecond(500).WithBurst(100), processes: 1, demand: 1, dear: 3, length: 60 * second,
		}, 5, []line{uses(0.99), within}},
	} {
		// What leases and bucket hold when a run ends is missing in its utilisation: 60 tokens at a
		// burst of 200, whatever its length. So where it is below 1 the run is long.
		t.Run(c.name, func(t *testing.T) {
			f := c.run
			if f.processes == 0 {
				f.processes = 10
			}
			f.mode, f.trip = tiered.FailClosed, roundTrip
			if f.length == 0 {
				f.length = 12 * second
			}
			all := f.runs(t, seeds(c.seeds))
			for _, l := range c.lines {
				l.Name = c.name + ": " + l.Name
				l.Value = l.by(all, l.of)
				fmt.Println(l.Line)
				if !l.Holds() {
					t.Errorf("%s: %v misses %v", l.Name, l.Value, l.Bound) // no tabs: it is one line
				}
			}
		})
	}
}

// Twenty processes share a limit of one key, and more is asked for than there is. The first process
// is asked ten times as often as the last one. None of them takes what the others need: each admits
// about the same part of what it is asked for, and none refuses all of it for long.
func TestNoProcessOfAFleetStarves(t *testing.T) {
	const processes, demand, end = 20, 1.5, 15 * second
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(roundTrip)
		start := time.Now()
		var sum float64
		for i := range processes {
			sum += math.Pow(float64(i+1), -0.77)
		}
		var all sync.WaitGroup
		for i := range processes {
			l := limiter(t, store, tiered.Policy{Limit: thousand}, &tiered.Options{Random: dice(1, uint64(1000+i))})
			rate := demand * 1000 * math.Pow(float64(i+1), -0.77) / sum // requests per second
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(i)))
				asked, admitted := 0, 0
				last, longest := warmUp, time.Duration(0) // the last admission, and the longest time without one
				for {
					time.Sleep(time.Duration(random.ExpFloat64() / rate * float64(second)))
					at := time.Since(start)
					if at > end {
						break
					}
					d := l.Allow(ctx, "hot")
					if at < warmUp {
						continue
					}
					asked++
					if longest = max(longest, at-last); d.Allowed {
						admitted++
						last = at
					}
				}
				part := float64(admitted) / float64(asked)
				t.Logf("process %d: %d asked, %.2f of them admitted, at most %v without one", i, asked, part, longest)
				if part < 0.4 || part > 0.9 || longest > second {
					t.Errorf("process %d: %.2f of its requests admitted, want about %.2f; %v without one", i, part,
						1/demand,
						longest)
				}
			})
		}
		all.Wait()
	})
}

// What TestRatios asks of the fleet is not asked here again.
func TestFleetUsesTheLimitAndKeepsTheBound(t *testing.T) {
	notUnderRace(t)
	for _, c := range []struct {
		name        string
		run         fleetRun
		utilisation float64 // at least
		calls       float64 // per admitted token, at most
	}{
		{"1.5 r", fleetRun{processes: 10, limit: thousand, demand: 1.5}, 0.985, 0.3},
		{"0.95 r", fleetRun{processes: 10, limit: thousand, demand: 0.95}, 0.99, 0.3},
		{"surges of 3 r", fleetRun{processes: 10, limit: thousand, demand: 3, surges: true}, 0.9, 0.3},
		{"10/s over 8 processes, 3 r", fleetRun{
			processes: 8, limit: tiered.PerSecond(10), demand: 3, length: 60 * time.Second,
		}, 0.95, 4},
		{"no leases, 3 r", fleetRun{processes: 10, limit: thousand, demand: 3, lease: neverLeased}, 0.98, 4},
		{"3 r, 10 % of replies lost", fleetRun{processes: 10, limit: thousand, demand: 3, loseReplies: 0.1}, 0.8, 0.4},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.run
			f.mode, f.trip = tiered.FailClosed, roundTrip
			if f.length == 0 {
				f.length = 12 * time.Second
			}
			for seed, m := range f.runs(t, 2) {
				if m.over > 0 {
					t.Errorf("seed %d: over-admission: %v", seed, m.worst)
				}
				if m.utilisation < c.utilisation {
					t.Errorf("seed %d: utilisation %.4f, want %.3f", seed, m.utilisation, c.utilisation)
				}
				if m.perToken > c.calls {
					t.Errorf("seed %d: %.3f calls per token, want %.2f", seed, m.perToken, c.calls)
				}
			}
		})
	}
}
