package tiered_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// leaseLife is how long a lease lives by default: nobody is refused for longer what others do not
// use.
const leaseLife = time.Second

// movedRig is a fleet whose requests move from process to process, on a Memory at the end of a
// wire.
type movedRig struct {
	limit     tiered.Limit
	algorithm tiered.Algorithm
	processes int
	obeys     bool // a process asks for nothing for as long as it was told
}

// arrival is a request: at a time after the window began, to a process.
type arrival struct {
	at      time.Duration
	process int
}

// movedOutcome is what became of the requests of a run.
type movedOutcome struct {
	requests int
	early    int           // refused though the limit had room
	stretch  time.Duration // the longest in which requests were refused and none admitted though the limit had room
	told     time.Duration // the longest RetryAfter of those that were refused early
	admitted int64
	windows  int64 // that were begun
	calls    int
	late     []string // refusals of the store that name a time after the end of another's lease
}

// play plays the requests. They arrive at random within a tenth of their distance, so that no two
// fall on one instant.
func (r movedRig) play(t *testing.T, seed uint64, requests func(random *rand.Rand) []arrival) (o movedOutcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		const start = 10 * time.Second // of the processes, so that each knows how many there are
		per := r.limit.Per
		time.Sleep(per - time.Duration(time.Now().Add(start).UnixNano()%int64(per)))
		store := &truthfulStore{Memory: remote.NewMemory()}
		jitter := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		random := func() float64 {
			mu.Lock()
			defer mu.Unlock()
			return jitter.Float64()
		}
		limiters := make([]*tiered.Limiter, r.processes)
		for i := range limiters {
			var err error
			if limiters[i], err = tiered.New(store, tiered.Policy{
				Name: "api", Limit: r.limit, Algorithm: r.algorithm, Calendar: r.algorithm == tiered.FixedWindow,
				FailMode: tiered.FailClosed,
			}, &tiered.Options{Random: random}); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = limiters[i].Close(ctx) }()
		}
		time.Sleep(start)
		begin := time.Now()
		store.calls = 0
		away := make([]time.Duration, r.processes) // until then a process does not ask
		judge := earlyJudge{limit: r.limit, algorithm: r.algorithm}
		var all sync.WaitGroup
		for _, a := range requests(rand.New(rand.NewPCG(seed, 2))) {
			time.Sleep(a.at - time.Since(begin))
			mu.Lock()
			asks := !r.obeys || a.at >= away[a.process]
			mu.Unlock()
			if !asks {
				continue
			}
			all.Go(func() { // who waits holds nobody up
				d := limiters[a.process].Allow(ctx, "k")
				if !d.Allowed {
					time.Sleep(time.Microsecond) // what the same reply admits is noted first
				}
				mu.Lock()
				defer mu.Unlock()
				at := time.Since(begin)
				o.requests++
				if away[a.process] = at + d.RetryAfter; judge.early(at, d.Allowed) {
					o.early++
					o.told = max(o.told, d.RetryAfter)
				}
			})
		}
		all.Wait()
		o.stretch, o.admitted, o.windows = judge.longest, judge.sum, judge.window+1
		o.calls, o.late = store.calls, store.late
	})
	return o
}

// earlyJudge says which refusals came though the limit had room.
type earlyJudge struct {
	limit     tiered.Limit
	algorithm tiered.Algorithm

	window   int64
	admitted []time.Duration // that count
	sum      int64           // admitted in all
	since    time.Duration   // refused from then on though there was room
	refused  bool
	longest  time.Duration
}

// early notes a decision, and reports whether it is a refusal though the limit had room.
func (j *earlyJudge) early(at time.Duration, allowed bool) bool {
	if j.algorithm == tiered.FixedWindow {
		if k := int64(at / j.limit.Per); k != j.window {
			j.window, j.admitted, j.refused = k, nil, false
		}
	} else {
		// A token counts from its settlement, a lease's life after it was spent at the latest, and
		// comes back two blocks late at most.
		counts := j.limit.Per + 2*lua.DefaultBlock(j.limit.Per) + leaseLife
		for len(j.admitted) > 0 && at-j.admitted[0] > counts {
			j.admitted = j.admitted[1:]
		}
	}
	switch {
	case allowed:
		j.admitted = append(j.admitted, at)
		j.sum++
		j.refused = false
		return false
	case int64(len(j.admitted)) >= j.limit.Tokens:
		j.refused = false
		return false
	case !j.refused:
		j.refused, j.since = true, at
	}
	j.longest = max(j.longest, at-j.since)
	return true
}

// truthfulStore is a Memory 300 µs away. It counts calls, and looks at what it tells those it
// refuses.
type truthfulStore struct {
	*remote.Memory
	mu    sync.Mutex
	calls int
	late  []string
}

func (s *truthfulStore) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	const way = 300 * time.Microsecond
	time.Sleep(way)
	s.mu.Lock()
	for i := range calls {
		s.Memory.Run(ctx, timeout, calls[i:i+1], results[i:i+1])
		s.calls++
		r := results[i].Reply
		if first, out := firstEnd(s.Fields(calls[i].Bucket), calls[i].Lease, r.Now); r.Code == lua.Denied && out &&
			r.Now+r.Retry > first {
			s.late = append(s.late, fmt.Sprintf("told %d µs, and a lease ends in %d µs", r.Retry, first-r.Now))
		}
	}
	s.mu.Unlock()
	time.Sleep(way)
}

// firstEnd returns when the first lease ends that another process than but holds tokens in, by the
// records of a key.
func firstEnd(fields map[string]string, but string, now int64) (first int64, out bool) {
	for name, record := range fields {
		if id, is := strings.CutPrefix(name, "p"); !is || id == but {
			continue
		}
		parts := strings.Split(record, "|") // seq, grant, out, want, end, debt
		end, err := strconv.ParseInt(parts[4], 10, 64)
		if err == nil && parts[2] != "0" && end > now && (!out || end < first) {
			first, out = end, true
		}
	}
	return first, out
}

// paced appends n requests to a process, at a rate per second, each up to a tenth of the distance
// early or late.
func paced(all []arrival, random *rand.Rand, n int64, rate float64, process int) []arrival {
	at := time.Duration(random.Float64() * float64(time.Millisecond))
	if len(all) > 0 {
		at = all[len(all)-1].at
	}
	for range n {
		at += time.Duration((0.9 + 0.2*random.Float64()) / rate * float64(time.Second))
		all = append(all, arrival{at, process})
	}
	return all
}

// moved is about three quarters of a limit through one process, then what is left and a fortieth
// more through another, as after a client has connected anew, and then a trickle.
func moved(limit int64) func(*rand.Rand) []arrival {
	return func(random *rand.Rand) []arrival {
		n := limit*3/4 + random.Int64N(limit/10) - limit/20
		all := paced(nil, random, n, 2000, 0)
		all = paced(all, random, limit*41/40-n, 2000, 1)
		return paced(all, random, 200, 10, 1)
	}
}

// blocks is runs of a twentieth of a limit through one process after the other, a tenth more than
// the limit in all.
func blocks(limit int64, processes int) func(*rand.Rand) []arrival {
	return func(random *rand.Rand) (all []arrival) {
		for i := range 22 {
			all = paced(all, random, limit/20, 1000, i%processes)
		}
		return all
	}
}

// strolls is requests at a moderate rate that move every now and then, a fifth more than the limit
// in all.
func strolls(limit int64, rate float64, processes int) func(*rand.Rand) []arrival {
	return func(random *rand.Rand) (all []arrival) {
		for i := 0; int64(len(all)) < limit*6/5; i++ {
			all = paced(all, random, 1+random.Int64N(int64(4*rate)), rate, i%processes)
		}
		return all
	}
}

// steadily is independent requests to all processes, so many times the limit, for three of its
// periods.
func steadily(times float64, limit tiered.Limit, processes int) func(*rand.Rand) []arrival {
	return func(random *rand.Rand) (all []arrival) {
		rate := times * float64(limit.Tokens) / float64(limit.Per)
		for at := time.Duration(0); at < 3*limit.Per-time.Second; at += time.Duration(random.ExpFloat64() / rate) {
			all = append(all, arrival{at, random.IntN(processes)})
		}
		return all
	}
}

// sum adds up runs with several seeds.
func (r movedRig) sum(t *testing.T, requests func(*rand.Rand) []arrival) (o movedOutcome) {
	t.Helper()
	seeds := uint64(20)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		one := r.play(t, seed, requests)
		o.requests, o.early, o.calls = o.requests+one.requests, o.early+one.early, o.calls+one.calls
		o.admitted, o.windows = o.admitted+one.admitted, o.windows+one.windows
		o.stretch, o.told = max(o.stretch, one.stretch), max(o.told, one.told)
		o.late = append(o.late, one.late...)
	}
	return o
}

// What one process holds of a window is refused to the others while it is not used: little of it,
// and nobody for longer than a lease lives, however long the window is, whether he comes back when
// he was told or all the time. Nobody is told to stay away until the window ends.
//
// The bounds of early refusals of a fixed window are those of the best trial of each load, and
// those of a sliding window are what it had before. Calls are bounded by what they were, and a
// fifth to a half more while a window is drained fast (docs/internals/sizing.md).
func TestFleetWhoseRequestsMove(t *testing.T) {
	if race.On {
		t.Skip("many runs: not under the race detector")
	}
	const day = 24 * time.Hour
	limit := func(tokens int64, per time.Duration) tiered.Limit { return tiered.Limit{Tokens: tokens, Per: per} }
	minutely := func(tokens int64) tiered.Limit { return limit(tokens, time.Minute) }
	type row struct {
		name      string
		limit     tiered.Limit
		processes int
		requests  func(*rand.Rand) []arrival
		early     float64 // % of the requests, at most
		slides    float64 // the same of a sliding window
		used      float64 // of a fixed window, at least; of a sliding one two hundredths less
		calls     float64 // per decision of a fixed window, at most; of a sliding one a sixth more
	}
	for _, c := range []row{
		{"moved, 100", minutely(100), 2, moved(100), 6.9, 6.9, 1, 0.15},
		{"moved, 400", minutely(400), 2, moved(400), 6.2, 6.2, 1, 0.125},
		{"moved, 400 per day", limit(400, day), 2, moved(400), 6.2, 6.2, 1, 0.125},
		{"moved, 400 per month", limit(400, 30*day), 2, moved(400), 6.2, 6.2, 1, 0.125},
		{"moved, 2000", minutely(2000), 2, moved(2000), 5.0, 5.0, 1, 0.05},
		{"moved, 10000", minutely(10_000), 2, moved(10_000), 0.01, 0.01, 1, 0.013},
		{"3 in blocks, 400", minutely(400), 3, blocks(400, 3), 0.4, 5.9, 1, 0.19},
		{"3 in blocks, 400 per month", limit(400, 30*day), 3, blocks(400, 3), 0.4, 0.4, 1, 0.19},
		{"3 in blocks, 2000", minutely(2000), 3, blocks(2000, 3), 4.85, 5.4, 1, 0.05},
		{"12 in blocks, 400", minutely(400), 12, blocks(400, 12), 11.6, 12.2, 0.97, 0.44},
		{"12 in blocks, 2000", minutely(2000), 12, blocks(2000, 12), 10.3, 12.2, 0.97, 0.17},
		{"4 that stroll, 100", minutely(100), 4, strolls(100, 12, 4), 0.1, 0.1, 1, 0.5},
		{"4 that stroll, 400 per day", limit(400, day), 4, strolls(400, 30, 4), 0.2, 0.2, 1, 0.25},
		{"3 times 100", minutely(100), 4, steadily(3, minutely(100), 4), 0.05, 0.05, 1, 0.45},
		{"3 times 400", minutely(400), 4, steadily(3, minutely(400), 4), 0.05, 0.3, 1, 0.24},
		{"3 times 2000", minutely(2000), 4, steadily(3, minutely(2000), 4), 0.05, 0.1, 1, 0.052},
		{"once 400", minutely(400), 4, steadily(1, minutely(400), 4), 0.02, 0.15, 0.97, 0.995},
		{"once 2000", minutely(2000), 4, steadily(1, minutely(2000), 4), 0.02, 0.2, 0.98, 0.33},
	} {
		for _, algorithm := range []tiered.Algorithm{tiered.FixedWindow, tiered.SlidingWindow} {
			for _, obeys := range []bool{false, true} {
				name := fmt.Sprint(algorithm, " ", c.name)
				if obeys {
					name += ", obeying"
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					o := movedRig{c.limit, algorithm, c.processes, obeys}.sum(t, c.requests)
					early := 100 * float64(o.early) / float64(o.requests)
					used := float64(o.admitted) / float64(c.limit.Tokens*o.windows)
					calls := float64(o.calls) / float64(o.requests)
					t.Logf("early %.2f %% of %d, longest %.2f s, told %.2f s, used %.3f, %.3f calls per decision",
						early, o.requests, o.stretch.Seconds(), o.told.Seconds(), used, calls)
					if len(o.late) > 0 {
						t.Errorf("%d refusals of the store name too late a time: %s", len(o.late), o.late[0])
					}
					if o.stretch > leaseLife || o.told > leaseLife {
						t.Errorf("refused for %v in a row and told %v while there was room, want at most %v", o.stretch,
							o.told, leaseLife)
					}
					most, least, dearest := c.early, c.used, c.calls
					if algorithm == tiered.SlidingWindow {
						most, least, dearest = c.slides, c.used-0.02, c.calls*7/6
					}
					if testing.Short() { // fewer runs
						most, dearest = most*1.1+0.2, dearest*1.1
					}
					if !obeys && (early > most || used < least-1e-9 || calls > dearest) {
						t.Errorf("want at most %.2f %% early, %.3f used and %.3f calls", most, least, dearest)
					}
				})
			}
		}
	}
}
