package tiered_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// offer is one request of a fleet: when, for which key, and what became of it.
type offer struct {
	at      time.Duration // when it was made
	done    time.Duration // when it was decided
	key     int
	cost    int64
	allowed bool
	reason  tiered.Reason
}

// fleetRun is a fleet under load, in virtual time.
type fleetRun struct {
	processes   int
	limit       tiered.Limit
	demand      float64 // offered, as a part of the limit's rate
	hot         bool    // one process has all the demand, another one every 0.5 s
	turns       bool    // one process has 0.8 of the demand, another one every second
	even        bool    // each process asks at even intervals, give or take a tenth, instead of at random times
	dear        int64   // a request costs 1 to so much, at random; 0 for always 1
	algorithm   tiered.Algorithm
	surges      bool // most of the demand comes in the first 0.8 s of each 2 s
	lease       tiered.Lease
	length      time.Duration
	trip        time.Duration // of a call, there and back
	tail        bool          // half of the time on the wire is exponentially distributed
	stalls      bool          // besides, one call in 200 takes 10 ms more
	watch       bool          // see what the processes hold, and what they burn
	loseReplies float64       // part of the time, in stretches of 60 ms
	mode        tiered.FailMode
	known       int                                      // Options.Processes
	down        func(at time.Duration, process int) bool // who is cut off when
	lossy       float64                                  // part of the replies that are lost
	keys        int                                      // keys with a limit each that share the demand; 0 for one
	patience    time.Duration                            // Options.Budget and Timeout; 0 for the defaults
}

const (
	// peak is what is offered in a surge, in times the average; quiet what is offered between
	// surges, as a part of that.
	peak  = 2.35
	quiet = 0.04
)

// now reports the part of the largest demand that there is at a time.
func (f fleetRun) now(at time.Duration) float64 {
	if f.surges && at%(2*time.Second) > 800*ms {
		return quiet
	}
	return 1
}

// holdings is what a watched fleet had in hand.
type holdings struct {
	most           int64 // in one process at once
	granted, burnt int64
}

// run returns what was offered, by time, and the calls made.
func (f fleetRun) run(t *testing.T, seed uint64) (offers []offer, calls int64) {
	t.Helper()
	offers, calls, _ = f.see(t, seed)
	return offers, calls
}

// see is run, and what the fleet had in hand if it is watched.
func (f fleetRun) see(t *testing.T, seed uint64) (offers []offer, calls int64, h holdings) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := newDistant(f.trip)
		policy := tiered.Policy{
			Name: "api", Algorithm: f.algorithm, Limit: f.limit, FailMode: f.mode, Lease: f.lease,
			Calendar: f.algorithm == tiered.FixedWindow,
		}
		rate := f.demand / nanosPerTokenOf(f.limit) // requests per ns, all together
		if f.dear > 0 {
			rate /= float64(1+f.dear) / 2
		}
		if f.surges {
			rate *= peak
		}
		start := time.Now()
		var mu sync.Mutex
		var all sync.WaitGroup
		limiters := make([]*tiered.Limiter, f.processes)
		wires := make([]*distant, f.processes)
		for i := range limiters {
			wire := store
			if f.down != nil || f.lossy > 0 || f.tail || f.stalls {
				wire = &distant{Memory: store.Memory, trip: f.trip}
				if f.tail || f.stalls {
					wire.tail = f.ways(seed, uint64(i))
				}
				if f.down != nil {
					wire.down = func() bool { return f.down(time.Since(start), i) }
				}
				lost := dice(seed, uint64(2000+i))
				wire.lossy = func() bool { return lost() < f.lossy }
			}
			wires[i] = wire
			// Jitter with a seed, and arrivals that fall on no common nanosecond: a run repeats
			// exactly.
			limiters[i] = limiter(t, wire, policy, &tiered.Options{
				Processes: f.known, Random: dice(seed, uint64(3000+i)), Budget: f.patience, Timeout: f.patience,
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		if f.loseReplies > 0 {
			random := rand.New(rand.NewPCG(seed, 1000))
			all.Go(func() {
				for ctx.Err() == nil {
					store.loseReplies.Store(true)
					time.Sleep(60 * ms)
					store.loseReplies.Store(false)
					time.Sleep(time.Duration((0.5 + random.Float64()) * 60 / f.loseReplies * float64(ms)))
				}
			})
		}
		if f.watch {
			all.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(20 * ms) {
					for _, l := range limiters {
						h.most = max(h.most, l.Stats().Leases.Held)
					}
				}
			})
		}
		request := func(l *tiered.Limiter, key int, cost int64) {
			at := time.Since(start)
			d := l.AllowN(context.Background(), strconv.Itoa(key), cost)
			o := offer{at, time.Since(start), key, cost, d.Allowed, d.Reason}
			mu.Lock()
			offers = append(offers, o)
			mu.Unlock()
		}
		var loads sync.WaitGroup
		for i, l := range limiters {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			each := rate / float64(f.processes)
			if f.hot {
				each = rate
			}
			if f.turns {
				each = 0.8 * rate
			}
			loads.Go(func() {
				for {
					pause := random.ExpFloat64()
					if f.even {
						pause = 0.9 + 0.2*random.Float64()
					}
					time.Sleep(time.Duration(pause / each))
					now := time.Since(start)
					if now > f.length {
						return
					}
					if f.hot && int(now/(500*ms))%f.processes != i {
						time.Sleep(500*ms - now%(500*ms))
						continue
					}
					if part := f.now(now); part < 1 && random.Float64() > part {
						continue
					}
					if f.turns && int(now/second)%f.processes != i && random.Float64() > 0.25/float64(f.processes-1) {
						continue
					}
					cost := int64(1)
					if f.dear > 0 {
						cost += random.Int64N(f.dear)
					}
					key := 0
					if f.keys > 1 {
						key = random.IntN(f.keys)
					}
					loads.Go(func() { request(l, key, cost) }) // open loop: who waits holds nobody up
				}
			})
		}
		loads.Wait()
		cancel()
		all.Wait()
		for _, l := range limiters {
			s := l.Stats()
			h.granted, h.burnt = h.granted+s.Leases.Granted, h.burnt+s.Leases.Burnt
			// Nothing of that happens in any run: who reported it would cry wolf.
			if n := node(l); n.Faults.StateLosses+n.Faults.ClockSteps+n.Faults.ClockBack+n.Calls.Misconfigured > 0 {
				t.Errorf("a fault that there was not: %+v", n)
			}
		}
		calls = store.calls.Load()
		for _, w := range wires {
			if w != store {
				calls += w.calls.Load()
			}
		}
	})
	slices.SortFunc(offers, func(a, b offer) int { return int(a.at - b.at) })
	return offers, calls, h
}

// dice returns random numbers in [0, 1) that repeat with their seed.
func dice(seed, stream uint64) func() float64 {
	random := rand.New(rand.NewPCG(seed, stream))
	var mu sync.Mutex
	return func() float64 {
		mu.Lock()
		defer mu.Unlock()
		return random.Float64()
	}
}

// ways returns what a way over the wire takes, in times the average: half of it is as in a network,
// never less than half of the average and sometimes several times as much; a stall is a slow
// command before ours, a fork, a pause of either side.
func (f fleetRun) ways(seed, process uint64) func() float64 {
	uniform := dice(seed, 4000+process)
	return func() float64 {
		if f.stalls && uniform() < 1./400 {
			return float64(10*ms) / float64(f.trip/2)
		}
		return 0.5 - 0.5*math.Log1p(-uniform())
	}
}

// figures are what a run came to.
type figures struct {
	offered, admitted int          // tokens
	decisions         int          //
	denied            float64      // part of the requests that the ideal limiter admits and this one refused
	utilisation       float64      // admitted, as a part of what one ideal central bucket per key would admit
	over              float64      // tokens beyond the bound of a key, in the worst interval: 0 for none
	worst             ideal.Excess // that interval
	perDecision       float64      // calls
	perToken          float64      // calls per admitted token
	perSecond         float64      // calls
	waited            float64      // of a million decisions made after warmUp, those that waited
	parked            float64      // the most that one process had in hand, as a part of the burst (if watched)
	burnt             float64      // of a million tokens granted
}

// warmUp is how long a fleet may take to know its demand, where a figure is about the time after
// it.
const warmUp = 2 * time.Second

// measure runs the fleet and judges the run.
func (f fleetRun) measure(t *testing.T, seed uint64) figures {
	t.Helper()
	offers, calls, h := f.see(t, seed)
	m := figures{decisions: len(offers)}
	m.parked = float64(h.most) / float64(burstOf(f.limit))
	m.burnt = 1e6 * float64(h.burnt) / float64(h.granted)
	byKey := map[int][]offer{}
	for _, o := range offers {
		byKey[o.key] = append(byKey[o.key], o)
	}
	best, late, waited, denied := 0, 0, 0, 0
	m.worst.Over = math.Inf(-1)
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		admits := f.ideal()
		for _, o := range byKey[key] {
			m.offered += int(o.cost)
			if admits(o.at, o.cost) {
				best += int(o.cost)
				if !o.allowed {
					denied++
				}
			}
			if o.allowed {
				m.admitted += int(o.cost)
			}
			if o.at >= warmUp {
				late++
				if o.done > o.at {
					waited++
				}
			}
		}
		if w := f.worst(byKey[key]); w.Over > m.worst.Over {
			m.worst = w
		}
	}
	if calls == 0 || m.decisions == 0 || best == 0 {
		t.Errorf("seed %d: %d calls, %d requests, and an ideal limiter admits %d: this shows nothing", seed, calls, m.decisions, best)
	}
	m.denied = float64(denied) / float64(len(offers))
	if m.worst.Over > tolerance(f.limit) {
		m.over = m.worst.Over
	}
	m.utilisation = float64(m.admitted) / float64(best)
	m.perDecision = float64(calls) / float64(m.decisions)
	m.perToken = float64(calls) / float64(m.admitted)
	m.perSecond = float64(calls) / f.length.Seconds()
	m.waited = 1e6 * float64(waited) / float64(late)
	return m
}

func (m figures) String() string {
	return fmt.Sprintf("%d offered, %d admitted, utilisation %.4f, denied %.4f, %.4f calls per token, %.4f per decision, %.0f of a million waited, worst interval: %v",
		m.offered, m.admitted, m.utilisation, m.denied, m.perToken, m.perDecision, m.waited, m.worst)
}

// The figures of a run that lines and tables are made of.
func (m figures) use() float64      { return m.utilisation }
func (m figures) excess() float64   { return m.over }
func (m figures) calls() float64    { return m.perDecision }
func (m figures) price() float64    { return m.perToken }
func (m figures) load() float64     { return m.perSecond }
func (m figures) waits() float64    { return m.waited }
func (m figures) refusals() float64 { return 100 * m.denied }

// runs measures a run with some seeds.
func (f fleetRun) runs(t *testing.T, seeds uint64) (all []figures) {
	t.Helper()
	for seed := range seeds {
		all = append(all, f.measure(t, seed))
		t.Logf("seed %d: %v", seed, all[seed])
	}
	return all
}

// sorted is one figure of some runs.
func sorted(all []figures, of func(figures) float64) (values []float64) {
	for _, m := range all {
		values = append(values, of(m))
	}
	slices.Sort(values)
	return values
}

func median(all []figures, of func(figures) float64) float64 {
	values := sorted(all, of)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func most(all []figures, of func(figures) float64) float64 { return slices.Max(sorted(all, of)) }

func mean(all []figures, of func(figures) float64) (sum float64) {
	for _, v := range sorted(all, of) {
		sum += v / float64(len(all))
	}
	return sum
}

// microsecond is what a limit may be exceeded by because the store's clock has whole microseconds,
// and a grant may be 10⁻⁹ early.
func tolerance(l tiered.Limit) float64 { return 2*float64(time.Microsecond)/nanosPerTokenOf(l) + 1e-6 }

// worst judges the admissions of a part of a run.
func worst(offers []offer, l tiered.Limit, from, to time.Duration) ideal.Excess {
	var admissions []ideal.Admission
	for _, o := range offers {
		if o.allowed && o.at >= from && o.at < to {
			admissions = append(admissions, ideal.Admission{Before: int64(o.at), After: int64(o.done), Tokens: o.cost})
		}
	}
	return ideal.Worst(admissions, l.Tokens, l.Per, burstOf(l))
}

// denied counts the refusals of a part of a run.
func denied(offers []offer, from, to time.Duration) (n, of int) {
	for _, o := range offers {
		if o.at >= from && o.at < to {
			of++
			if !o.allowed {
				n++
			}
		}
	}
	return n, of
}

// ideal returns a limiter that decides like one central one to which no call takes time.
func (f fleetRun) ideal() (admits func(at time.Duration, cost int64) bool) {
	if f.algorithm == tiered.TokenBucket {
		bucket := ideal.NewBucket(f.limit.Tokens, f.limit.Per, burstOf(f.limit))
		return func(at time.Duration, cost int64) bool { return bucket.Take(int64(at), cost) }
	}
	if f.algorithm == tiered.FixedWindow {
		window, used := int64(-1), int64(0)
		return func(at time.Duration, cost int64) bool {
			if w := f.window(at); w > window {
				window, used = w, 0
			}
			if used+cost > f.limit.Tokens {
				return false
			}
			used += cost
			return true
		}
	}
	type entry struct {
		at   time.Duration
		cost int64
	}
	var log []entry
	total := int64(0)
	return func(at time.Duration, cost int64) bool {
		for len(log) > 0 && log[0].at <= at-f.limit.Per {
			total -= log[0].cost
			log = log[1:]
		}
		if total+cost > f.limit.Tokens {
			return false
		}
		total += cost
		log = append(log, entry{at, cost})
		return true
	}
}

// window is the number of the fixed window of an instant. Virtual time begins at a multiple of
// every window here.
func (f fleetRun) window(at time.Duration) int64 { return int64(at / f.limit.Per) }

// worst judges a key's admissions by the bound of the algorithm.
func (f fleetRun) worst(offers []offer) ideal.Excess {
	if f.algorithm == tiered.TokenBucket {
		return worst(offers, f.limit, 0, math.MaxInt64)
	}
	most := ideal.Excess{Over: math.Inf(-1)}
	if f.algorithm == tiered.FixedWindow {
		sums := map[int64]int64{}
		for _, o := range offers {
			if w := f.window(o.at); o.allowed && w == f.window(o.done) {
				sums[w] += o.cost
			}
		}
		for _, sum := range sums {
			most.Over = max(most.Over, float64(sum-f.limit.Tokens))
		}
		return most
	}
	for i, first := range offers {
		end, sum := first.at+f.limit.Per, int64(0)
		for _, o := range offers[i:] {
			if o.at >= end {
				break
			}
			if o.allowed && o.done < end {
				sum += o.cost
			}
		}
		if over := float64(sum - f.limit.Tokens); over > most.Over {
			most = ideal.Excess{
				From: int64(first.at), To: int64(end), Tokens: sum, Bound: float64(f.limit.Tokens), Over: over,
			}
		}
	}
	return most
}
