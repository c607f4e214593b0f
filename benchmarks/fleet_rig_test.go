package benchmarks

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// fleetSize is the number of limiters that share the limits. All are in this process, each with
// connections of its own.
const fleetSize = 4

// perUser is the limit of each user.
var perUser = tiered.PerSecond(100).WithBurst(200)

// Fleet is some limiters of one kind with a redis-server of their own.
type Fleet struct {
	Name   string
	Server *Server

	decide   []Decide
	limiters []*tiered.Limiter // ours
	base     time.Time
	history  map[int][]made // by key, of the whole run
}

// made is one request.
type made struct {
	before, after int64 // ns since the Fleet's base: when it was made, and when it was answered
	answer        Answer
}

// newFleet returns limiters that nobody has used.
func newFleet(tb testing.TB, name string, connect func(*Fleet) Decide) *Fleet {
	tb.Helper()
	f := &Fleet{Name: name, base: time.Now(), history: map[int][]made{}}
	if name != nobody {
		f.Server = StartServer(tb)
	}
	for range fleetSize {
		f.decide = append(f.decide, connect(f))
	}
	return f
}

// oursFleet returns a Fleet of this project's limiters.
func oursFleet(tb testing.TB, name string, s float64) *Fleet {
	tb.Helper()
	return newFleet(tb, name, func(f *Fleet) Decide {
		l := f.Server.limiter(tb, tiered.Policy{Standing: s}, perUser, patient)
		f.limiters = append(f.limiters, l)
		return decideBy(tb, l, false)
	})
}

// nobody is the name of a Fleet that admits everything at once: what it costs is the making of the
// requests.
const nobody = "nobody"

// quarantine is longer than a new table of standing shares lends nothing, and two of the processes'
// polls.
const quarantine = 75 * time.Second

// awaitShares waits until each limiter has its part of the standing shares, and they are full.
func (f *Fleet) awaitShares(tb testing.TB) {
	tb.Helper()
	const full = 3 * time.Second // (burst/8) ÷ (rate/8), and half as much again
	for _, l := range f.limiters {
		for {
			s := l.Group().Stats().Standing
			if !s.Quarantine && s.Members == fleetSize && s.Fraction > 0.99/fleetSize {
				break
			}
			if time.Since(f.base) > quarantine+settleTime {
				tb.Fatalf("%s: a process has no part of the standing shares after %v: %+v", f.Name, time.Since(f.base), s)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	time.Sleep(full)
}

// play carries a load for a time. It warms up first, because since its last turn a Fleet has
// returned its leases.
func (f *Fleet) play(tb testing.TB, u Users, seed uint64, warm, length time.Duration) Usage {
	tb.Helper()
	before, during := u.schedule(2*seed, warm), u.schedule(2*seed+1, length)
	f.drive(u, before)
	runtime.GC() // each turn begins alike
	done := begin(tb, f.Server)
	w := done(f.drive(u, during))
	if failed := w.Tally.With(Failed); failed > 0 {
		tb.Fatalf("%s: %d of %d decisions failed", f.Name, failed, w.N)
	}
	tb.Logf("%s, %+v: %d decisions, %.4f calls, %.4f waited, %.4f refused, p50 %v, p99 %v, process %.1f µs, "+
		"Redis %.1f µs (%.0f %% of a core), %v late", f.Name, u, w.N, calls(w), waited(w), 1-Per(w, w.Tally.With(Admitted)),
		w.P50, w.P99, ClientCPU(w)/1e3, ServerCPU(w)/1e3, 100*serverLoad(w), w.Late)
	return w
}

// drive makes requests when they are due, and waits for the last answer. A request is made as a
// service makes it, by a goroutine that has served others before, with a key that was just read.
func (f *Fleet) drive(u Users, due []arrival) Usage {
	all := make([]made, len(due))
	late := make([]time.Duration, len(due))
	serve := func(i int) {
		ctx, key, decide, m := context.Background(), keyOf(u.First+due[i].key), f.decide[due[i].process], &all[i]
		m.before = int64(time.Since(f.base))
		m.answer = decide(ctx, key)
		m.after = int64(time.Since(f.base))
	}
	next := make(chan int)
	var done sync.WaitGroup
	start := time.Now()
	for i, a := range due {
		if wait := a.at - time.Since(start); wait > 0 {
			time.Sleep(wait)
		}
		late[i] = time.Since(start) - a.at
		select {
		case next <- i:
		default: // all are busy
			done.Go(func() {
				serve(i)
				for i := range next {
					serve(i)
				}
			})
		}
	}
	close(next)
	done.Wait()
	w := Usage{N: len(due), Wall: time.Since(start)}
	took := make([]time.Duration, len(due))
	for i, m := range all {
		w.Tally[m.answer]++
		took[i] = time.Duration(m.after - m.before)
		key := u.First + due[i].key
		f.history[key] = append(f.history[key], m)
	}
	w.P50, w.P99, w.Late = percentile(took, 50), percentile(took, 99), percentile(late, 99)
	return w
}

// percentile sorts ds and returns the one of which p of 100 are at most as long.
func percentile(ds []time.Duration, p int) time.Duration {
	slices.Sort(ds)
	return ds[min(len(ds)*p/100, len(ds)-1)]
}

// judgement compares what a Fleet did with an ideal bucket for each key that is offered the same.
type judgement struct {
	requests        int
	admitted, ideal int
	wrongly         int     // refused, though the ideal bucket admits it
	over            float64 // tokens by which the worst interval of the worst key exceeds the limit; 0 if none does
}

// tolerance is how many tokens the clocks explain: Redis tells time in whole microseconds, so two
// of its readings may be 1 µs further apart than they were. A grant may be 10⁻⁹ token early.
var tolerance = float64(perUser.Tokens)*1e-6 + 1e-6

// judge judges the keys of a load for which of returns true, over all that the Fleet did for them.
func (f *Fleet) judge(u Users, of func(key int) bool) (j judgement) {
	for k := range u.Keys {
		if !of(k) {
			continue
		}
		all := f.history[u.First+k]
		slices.SortFunc(all, func(a, b made) int { return int(a.before - b.before) })
		bucket := ideal.NewBucket(perUser.Tokens, perUser.Per, perUser.Burst)
		var admissions []ideal.Admission
		for _, m := range all {
			can, did := bucket.Take(m.before, 1), m.answer&Admitted != 0
			if can {
				j.ideal++
			}
			if can && !did {
				j.wrongly++
			}
			if did {
				admissions = append(admissions, ideal.Admission{Before: m.before, After: m.after, Tokens: 1})
			}
		}
		j.requests, j.admitted = j.requests+len(all), j.admitted+len(admissions)
		if int64(len(admissions)) > perUser.Burst { // else nothing can be over
			j.over = max(j.over, ideal.Worst(admissions, perUser.Tokens, perUser.Per, perUser.Burst).Over-tolerance)
		}
	}
	return j
}

// every is for all keys of a load.
func every(int) bool { return true }
