package tiered_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// twoNodes is a process' way to two nodes, whose clocks differ. It can be cut.
type twoNodes struct {
	*remote.Memory
	second *remote.Memory
	cut    atomic.Bool
	trip   time.Duration
}

const secondNode remote.Node = "second"

func (p *twoNodes) Node(bucket string) remote.Node {
	if local.Hash(1, local.ID{Key: bucket})%2 == 0 {
		return secondNode
	}
	return "memory"
}

func (p *twoNodes) Locate(_ context.Context, bucket string) (remote.Node, error) {
	return p.Node(bucket), nil
}
func (p *twoNodes) Nodes() []remote.Node { return []remote.Node{"memory", secondNode} }

func (p *twoNodes) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	time.Sleep(p.trip / 2)
	for i := range calls {
		if p.cut.Load() {
			results[i] = remote.Result{Err: context.DeadlineExceeded}
		} else if p.Node(calls[i].Bucket) == secondNode {
			p.second.Run(ctx, timeout, calls[i:i+1], results[i:i+1])
		} else {
			p.Memory.Run(ctx, timeout, calls[i:i+1], results[i:i+1])
		}
	}
	if p.cut.Load() {
		time.Sleep(timeout)
	}
	time.Sleep(p.trip / 2)
}

func (p *twoNodes) Presence(ctx context.Context, timeout time.Duration, n remote.Node, of remote.Process) (remote.Census, error) {
	time.Sleep(p.trip / 2)
	defer time.Sleep(p.trip / 2)
	if p.cut.Load() {
		time.Sleep(timeout)
		return remote.Census{}, context.DeadlineExceeded
	}
	m := p.Memory
	if n == secondNode {
		m = p.second
	}
	return m.Presence(ctx, timeout, "memory", of)
}

// ledger counts what is admitted of a key in each of its windows, by its node's clock.
type ledger struct {
	t      *testing.T
	mu     sync.Mutex
	length time.Duration
	ahead  map[string]time.Duration
	phase  map[string]int64
	count  map[string]int64
	most   map[string]int64
	peak   map[string]int64
	note   func() string
	failed bool
}

func (l *ledger) window(key string, at time.Time) int64 {
	us := at.Add(l.ahead[key]).UnixMicro()
	return (us - l.phase[key]) / l.length.Microseconds()
}

// add counts n tokens that were admitted from begun to now.
func (l *ledger) add(key string, begun time.Time, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.window(key, time.Now())
	if l.window(key, begun) != w {
		return
	}
	id := fmt.Sprint(key, " ", w)
	l.count[id] += n
	l.peak[key] = max(l.peak[key], l.count[id])
	if l.count[id] > l.most[key] {
		if l.failed {
			return
		}
		l.failed = true
		l.t.Errorf("%s: %d of %d tokens in the window: %s", id, l.count[id], l.most[key], l.note())
	}
}

const (
	cuts = 1 << iota
	deploys
	hashed
	latency
)

// In no window more is admitted than its limit, whatever is asked for, and in whichever order
// processes come, go, are cut off and change.
func TestWindowSharesBound(t *testing.T) {
	if race.On {
		t.Skip("the race detector makes it a minute, and it counts only")
	}
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for _, mode := range []int{0, cuts, deploys, hashed | cuts, hashed | deploys, latency | deploys, latency | hashed | cuts} {
		for seed := range seeds {
			t.Run(fmt.Sprint(mode, " ", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { windowBound(t, mode, seed) })
			})
		}
	}
}

func windowBound(t *testing.T, mode int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, uint64(mode)))
	a, b := remote.NewMemory(), remote.NewMemory()
	ahead := time.Duration(random.Int64N(4e6)-2e6) * time.Microsecond
	b.Step(ahead)
	length := []time.Duration{time.Minute, 10 * time.Second, 2 * time.Second}[random.IntN(3)]
	trip := time.Duration(0)
	if mode&latency > 0 {
		trip = time.Duration(random.Int64N(int64(20 * time.Millisecond)))
	}
	policy := func(standing float64) tiered.Policy {
		return tiered.Policy{
			Name: "api", Algorithm: tiered.FixedWindow, Limit: tiered.Limit{Tokens: 400, Per: length}, Calendar: mode&hashed == 0,
			Standing: standing, FailMode: tiered.FailClosed,
			Plans: map[string]tiered.Limit{"pro": {Tokens: 800, Per: length}},
		}
	}
	probe := &twoNodes{Memory: a, second: b}
	l := &ledger{
		t: t, length: length, ahead: map[string]time.Duration{}, phase: map[string]int64{}, count: map[string]int64{},
		most: map[string]int64{}, peak: map[string]int64{},
	}
	keys := []string{"u0", "u1", "u2", "u3", "v0", "v1"}
	for _, k := range keys {
		kind := remote.Kind{Algorithm: lua.FixedWindow, Calendar: mode&hashed == 0, Window: length.Microseconds()}
		if probe.Node(probe.Name(kind, "api", k)) == secondNode {
			l.ahead[k] = ahead
		}
		if mode&hashed > 0 {
			l.phase[k] = int64(local.Hash(0xcbf29ce484222325, local.ID{Key: k}) % uint64(length.Microseconds()))
		}
		if l.most[k] = 400; k[0] == 'v' {
			l.most[k] = 800
		}
	}
	type process struct {
		*program
		store *twoNodes
	}
	var all []*process
	shared := []float64{1. / 2, 1. / 8, 3. / 4}[random.IntN(3)]
	var log []string
	start := time.Now()
	say := func(f string, args ...any) {
		log = append(log, fmt.Sprintf("%v ", time.Since(start))+fmt.Sprintf(f, args...))
	}
	l.note = func() string { return fmt.Sprint(log) }
	begin := func(standing float64) *process {
		s := &twoNodes{Memory: a, second: b, trip: trip}
		p := &process{program: run(t, s, "", policy(standing)), store: s}
		_ = p.Ping(ctx)
		return p
	}
	for range 1 + random.IntN(4) {
		all = append(all, begin(shared))
	}
	say("%d processes, Standing %v, ahead %v, window %v", len(all), shared, ahead, length)
	time.Sleep(settleShares)
	type held struct {
		r     tiered.Reservation
		key   string
		n     int64
		begun time.Time
	}
	var holds []held
	request := func() {
		p := all[random.IntN(len(all))]
		lim := limiterOf(t, p.program, "api")
		key := keys[random.IntN(len(keys))]
		use := func(key string) tiered.Use {
			u := lim.For(key)
			if key[0] == 'v' && random.IntN(2) == 0 {
				u = u.WithPlan("pro")
			}
			return u
		}
		n := int64(1)
		if random.IntN(3) == 0 {
			n = 1 + random.Int64N(40)
		}
		begun := time.Now()
		switch random.IntN(12) {
		case 0, 1:
			if r := use(key).N(n).Reserve(ctx); r.Allowed {
				l.add(key, begun, n)
				holds = append(holds, held{r, key, n, begun})
			}
		case 2:
			if key[0] == 'u' {
				if got, d := lim.AllowAtMost(ctx, key, n); d.Allowed {
					l.add(key, begun, got)
				}
			}
		case 3:
			if key2 := keys[random.IntN(len(keys))]; key2 != key {
				if tiered.All(use(key).N(n), use(key2).N(2)).Allow(ctx).Allowed {
					l.add(key, begun, n)
					l.add(key2, begun, 2)
				}
			}
		case 4:
			lim.Peek(ctx, key)
		case 5:
			if random.IntN(4) == 0 {
				_ = use(key).N(n).Charge()
			}
		case 6:
			if key[0] == 'u' && random.IntN(4) == 0 {
				go func() {
					c, cancel := context.WithTimeout(ctx, length)
					defer cancel()
					if lim.WaitN(c, key, n) == nil {
						l.add(key, time.Now().Add(-trip-time.Millisecond), n)
					}
				}()
			}
		default:
			if use(key).N(n).Allow(ctx).Allowed {
				l.add(key, begun, n)
			}
		}
		if len(holds) > 0 && random.IntN(9) == 0 { // mostly of a window that is over
			i := random.IntN(len(holds))
			h := holds[i]
			holds = append(holds[:i:i], holds[i+1:]...)
			back := random.Int64N(h.n + 1)
			if random.IntN(2) == 0 {
				back = h.n
				h.r.Cancel()
			} else {
				h.r.Settle(h.n - back)
			}
			if l.window(h.key, h.begun) == l.window(h.key, time.Now()) {
				l.add(h.key, time.Now(), -back)
			}
		}
	}
	standing := shared
	for end := time.Now().Add(6 * time.Minute); time.Until(end) > 0; {
		for range 1 + random.IntN(40) {
			request()
		}
		time.Sleep(time.Duration(random.Int64N(int64(length / 20))))
		if random.IntN(100) == 0 {
			switch {
			case mode&cuts > 0:
				p := all[random.IntN(len(all))]
				p.store.cut.Store(!p.store.cut.Load())
				say("cut %v", p.store.cut.Load())
				if random.IntN(3) == 0 {
					say("one joins")
					all = append(all, begin(shared))
				}
			case mode&deploys > 0 && random.IntN(3) == 0:
				standing = []float64{0, 1. / 8, 1. / 2, 3. / 4}[random.IntN(4)]
				kind := random.IntN(3)
				say("deploy %d of %v", kind, standing)
				for i := range all {
					if kind == 0 {
						ok(t, limiterOf(t, all[i].program, "api").SetPolicy(policy(standing)))
					} else {
						if random.IntN(2) == 0 {
							all[i].store.cut.Store(true) // it is killed
						}
						_ = all[i].Close(ctx)
						all[i] = begin(standing)
					}
					if kind < 2 {
						for range random.IntN(20) {
							request()
							time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
						}
					}
				}
			case random.IntN(4) == 0:
				say("one joins")
				all = append(all, begin(standing))
			case random.IntN(4) == 0 && len(all) > 1:
				say("one leaves")
				_ = all[0].Close(ctx)
				all = all[1:]
			}
		}
	}
	for _, p := range all {
		p.store.cut.Store(false)
	}
	time.Sleep(2 * length)
	shares := int64(0)
	for _, p := range all {
		shares += p.Stats().Policies["api"].Standing.Spent
	}
	l.mu.Lock() // some may wait yet
	defer l.mu.Unlock()
	t.Log(l.peak, "by shares", shares, log[0])
}

// A policy that is removed and comes back without shares leaves what they admitted in the window.
func TestPolicyThatComesBackWithoutShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := windowPolicy(400, 1./2)
		all := fleetOf(t, remote.NewMemory(), 1, p)
		nextMinute()
		time.Sleep(time.Second)
		n := int64(0)
		for range 200 {
			if d := limiterOf(t, all[0], "api").Allow(ctx, "user"); d.Tier == tiered.Local {
				n++
			}
		}
		ok(t, all[0].SetPolicies(nil))
		p.Standing = 0
		ok(t, all[0].SetPolicies([]tiered.Policy{p}))
		n += drain(t, all, "user")
		if n > 400 {
			t.Errorf("%d of 400 tokens", n)
		}
	})
}

// The same, with a pause that lets the process be told.
func TestPolicyThatComesBackAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := windowPolicy(400, 1./2)
		p.Limit = tiered.PerHour(400)
		all := fleetOf(t, remote.NewMemory(), 2, p)
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		n := int64(0)
		for i := range 200 {
			if d := limiterOf(t, all[i%2], "api").Allow(ctx, "user"); d.Tier == tiered.Local {
				n++
			}
		}
		for _, a := range all {
			ok(t, a.SetPolicies(nil))
		}
		time.Sleep(10 * time.Minute)
		p.Standing = 0
		for _, a := range all {
			ok(t, a.SetPolicies([]tiered.Policy{p}))
			_ = a.Ping(ctx)
		}
		n += drain(t, all, "user")
		if n > 400 {
			t.Errorf("%d of 400 tokens", n)
		}
	})
}

// Allow by a share of a window allocates nothing.
func TestWindowShareAllocatesNothing(t *testing.T) {
	if race.On {
		t.Skip("the race detector allocates")
	}
	for _, calendar := range []bool{true, false} {
		p := windowPolicy(1_000_000_000, 1./2)
		p.Calendar = calendar
		synctest.Test(t, func(t *testing.T) {
			all := fleetOf(t, remote.NewMemory(), 1, p)
			nextMinute()
			time.Sleep(61 * time.Second)
			l := limiterOf(t, all[0], "api")
			if d := l.Allow(ctx, "user"); d.Tier != tiered.Local {
				t.Fatalf("%+v", d)
			}
			if n := testing.AllocsPerRun(1000, func() { l.Allow(ctx, "user") }); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
