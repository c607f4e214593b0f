package tiered_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// TestFiftyThatWait computes the table of docs/internals/performance.md from which docs/waiting.md
// says what to choose: fifty who come at once wait for ten per second.
func TestFiftyThatWait(t *testing.T) {
	page := must(os.ReadFile("../docs/internals/performance.md"))
	ten := tiered.PerSecond(10)
	for _, c := range []struct {
		name   string
		policy tiered.Policy
	}{
		{"`TokenBucket`, burst 1", tiered.Policy{Limit: ten.WithBurst(1)}},
		{"`TokenBucket`, burst 10", tiered.Policy{Limit: ten}},
		{"`FixedWindow`", tiered.Policy{Limit: ten, Algorithm: tiered.FixedWindow, Calendar: true}},
		{"`SlidingWindow`", tiered.Policy{Limit: ten, Algorithm: tiered.SlidingWindow}},
		{"`SlidingLog`", tiered.Policy{Limit: ten, Algorithm: tiered.SlidingLog}},
	} {
		row := ""
		synctest.Test(t, func(t *testing.T) {
			c.policy.Name, c.policy.Lease.Size = "p", tiered.NoLease
			l := limiter(t, remote.NewMemory(), c.policy, nil)
			begun := time.Now() // a bubble begins at a whole second
			var mu sync.Mutex
			var all sync.WaitGroup
			at := map[time.Duration]int{}
			for range 50 {
				all.Go(func() {
					ok(t, l.Wait(ctx, "k"))
					mu.Lock()
					defer mu.Unlock()
					at[time.Since(begun).Round(10*ms)]++
				})
			}
			all.Wait()
			first, together, last := at[0], 0, time.Duration(0)
			for d, n := range at {
				if last = max(last, d); d > 0 {
					together = max(together, n)
				}
			}
			row = fmt.Sprintf("| %s | %d | %d | %.1f s |", c.name, first, together, last.Seconds())
		})
		if !strings.Contains(string(page), "\n"+row+"\n") {
			t.Errorf("docs/internals/performance.md has no row\n%s", row)
		}
	}
}

// crowd is waiters of one key in several processes, who come at one instant, in virtual time.
type crowd struct {
	limit     tiered.Limit
	lease     tiered.Lease
	processes int
	waiters   int // of each process
	trip      time.Duration
}

// crowdFigures are what came of a crowd.
type crowdFigures struct {
	pause time.Duration      // the longest in which nobody went
	alone time.Duration      // the longest in which nobody of one process went, after its first and before its last
	late  time.Duration      // the most by which anybody went later than an ideal bucket would have let as many go
	calls float64            // per token
	over  float64            // tokens beyond the bound
	stats tiered.PolicyStats // of the first process
}

func (f crowdFigures) String() string {
	return fmt.Sprintf("longest pause %v, of one process %v, %v late, %.3f calls per token, %.3f tokens over",
		f.pause, f.alone, f.late, f.calls, f.over)
}

// run lets the crowd wait.
func (c crowd) run(t *testing.T, seed uint64) (f crowdFigures) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(c.trip)
		policy := tiered.Policy{Name: "api", Limit: c.limit, Lease: c.lease}
		limiters := make([]*tiered.Limiter, c.processes)
		for i := range limiters {
			limiters[i] = limiter(t, store, policy, &tiered.Options{Random: dice(seed, uint64(i))})
		}
		time.Sleep(time.Second)
		start, before := time.Now(), store.calls.Load()
		var mu sync.Mutex
		var all sync.WaitGroup
		var went []time.Duration
		each := make([][]time.Duration, c.processes)
		for i, l := range limiters {
			for range c.waiters {
				all.Go(func() {
					ok(t, l.Wait(ctx, "k"))
					mu.Lock()
					defer mu.Unlock()
					went = append(went, time.Since(start))
					each[i] = append(each[i], time.Since(start))
				})
			}
		}
		all.Wait()
		f.calls = float64(store.calls.Load()-before) / float64(len(went))
		f.pause, f.late, f.over = c.judge(went)
		for _, times := range each {
			f.alone = max(f.alone, longest(times))
		}
		f.stats = limiters[0].Group().Stats().Policies["api"]
		for _, l := range limiters {
			books(t, l.Group())
			noTurns(t, l.Group())
		}
	})
	return f
}

// judge compares the times at which a crowd went with those of an ideal bucket.
func (c crowd) judge(went []time.Duration) (pause, late time.Duration, over float64) {
	pause = longest(went)
	var admissions []ideal.Admission
	for i, at := range went {
		best := time.Duration(float64(int64(i+1)-burstOf(c.limit)) * nanosPerTokenOf(c.limit))
		late = max(late, at-max(best, 0))
		admissions = append(admissions, ideal.Admission{Before: int64(at - c.trip), After: int64(at), Tokens: 1})
	}
	over = ideal.Worst(admissions, c.limit.Tokens, c.limit.Per, burstOf(c.limit)).Over
	return pause, late, max(over, 0)
}

// longest sorts times, and reports the longest between two.
func longest(times []time.Duration) (pause time.Duration) {
	slices.Sort(times)
	for i := 1; i < len(times); i++ {
		pause = max(pause, times[i]-times[i-1])
	}
	return pause
}

// byRate is the longest pause of as many who wait for one limiter of x/time/rate.
func (c crowd) byRate(t *testing.T) (pause time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := rate.NewLimiter(rate.Limit(1e9/nanosPerTokenOf(c.limit)), int(burstOf(c.limit)))
		start := time.Now()
		var mu sync.Mutex
		var all sync.WaitGroup
		var went []time.Duration
		for range c.processes * c.waiters {
			all.Go(func() {
				ok(t, l.Wait(ctx))
				mu.Lock()
				defer mu.Unlock()
				went = append(went, time.Since(start))
			})
		}
		all.Wait()
		pause = longest(went)
	})
	return pause
}

// A waiter is served when its token comes, with leases and direct takes, with many processes and
// with a distant Redis. A token that is waited for costs few calls.
func TestFleetWaitsAtThePaceOfTheLimit(t *testing.T) {
	notUnderRace(t)
	hundred, direct := tiered.PerSecond(100), neverLeased
	for _, c := range []struct {
		name string
		crowd
		pause, alone, late time.Duration // at most
		calls              float64       // at most
	}{
		{"leased", crowd{hundred, tiered.Lease{}, 1, 600, ms}, 15 * ms, 15 * ms, 10 * ms, 1},
		{"direct", crowd{hundred, direct, 1, 600, ms}, 15 * ms, 15 * ms, 10 * ms, 1},
		{"direct, Redis is far", crowd{hundred, direct, 1, 600, 15 * ms}, 20 * ms, 20 * ms, 100 * ms, 1},
		{"slow", crowd{tiered.PerSecond(10), tiered.Lease{}, 1, 60, ms}, 110 * ms, 110 * ms, 10 * ms, 1},
		{
			"a burst of one",
			crowd{tiered.PerSecond(10).WithBurst(1), tiered.Lease{}, 1, 30, ms},
			110 * ms, 110 * ms,
			10 * ms, 1.2,
		},
		{"a surge of three processes", crowd{hundred, tiered.Lease{}, 3, 90, ms}, 15 * ms, 500 * ms, 15 * ms, 2.2},
		{"three processes, direct", crowd{hundred, direct, 3, 90, ms}, 15 * ms, 500 * ms, 15 * ms, 2.2},
		{"three processes, far", crowd{hundred, tiered.Lease{}, 3, 200, 15 * ms}, 40 * ms, 400 * ms, 100 * ms, 1.5},
		{"ten processes", crowd{thousand, tiered.Lease{}, 10, 300, roundTrip}, 15 * ms, 300 * ms, 30 * ms, 1.4},
		{"thirty processes", crowd{thousand, tiered.Lease{}, 30, 100, roundTrip}, 60 * ms, time.Second, 120 * ms, 2},
		{"fast, direct", crowd{tiered.PerSecond(10_000), direct, 1, 15_000, ms}, 10 * ms, 10 * ms, 15 * ms, 0.05},
		{"many at once", crowd{roomy, tiered.Lease{}, 3, 12_000, roundTrip}, 10 * ms, 10 * ms, 100 * ms, 0.02},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range seeds(3) {
				f := c.run(t, seed)
				t.Logf("seed %d: %v", seed, f)
				if f.pause > c.pause || f.alone > c.alone || f.late > c.late || f.calls > c.calls {
					t.Errorf("seed %d: %v; want %v, %v, %v, %.2f at most", seed, f, c.pause, c.alone, c.late, c.calls)
				}
				if f.over > tolerance(c.limit) {
					t.Errorf("seed %d: over-admission: %v", seed, f)
				}
				if s := f.stats; s.Tokens.Limited != 0 || len(s.Top) > 0 {
					t.Errorf("seed %d: who waited and was served counts as refused: %+v", seed, s)
				}
			}
		})
	}
}

// TestRatiosWaiting has the lines of `make ratios` about waiters. It runs in virtual time, so they
// repeat exactly.
func TestRatiosWaiting(t *testing.T) {
	leased := crowd{limit: tiered.PerSecond(100), processes: 1, waiters: 600, trip: ms}
	direct := leased
	direct.lease.Size = tiered.NoLease
	f := leased.run(t, 1)
	times := func(pause time.Duration) float64 { return float64(f.pause) / float64(pause) }
	for _, l := range []ratio.Line{
		{Name: "longest pause ÷ taken directly", Value: times(direct.run(t, 1).pause), Bound: 1.5},
		{Name: "longest pause ÷ x/time/rate's Wait", Value: times(leased.byRate(t)), Bound: 1.5},
		{Name: "Redis commands per token", Value: f.calls, Bound: 1},
		{Name: "tokens over the bound", Value: f.over, Bound: tolerance(leased.limit)},
	} {
		l.Name = "600 wait for 100/s, leased: " + l.Name
		fmt.Println(l)
		if !l.Holds() {
			t.Errorf("%s: %v misses %v", l.Name, l.Value, l.Bound)
		}
	}
}
