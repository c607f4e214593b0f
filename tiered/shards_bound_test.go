package tiered

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Whatever the algorithm, the lease and the number of shards, and whichever shards are chosen at each request, the
// limit holds in every interval, over all shards and processes together.
func TestShardsKeepTheBound(t *testing.T) {
	refused, admitted := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		k := rapid.IntRange(2, 6).Draw(rt, "shards")
		p := Policy{
			Name: "api", Shards: k, FailMode: FailClosed,
			Algorithm: Algorithm(rapid.IntRange(0, int(SlidingWindow)).Draw(rt, "algorithm")),
		}
		if rapid.Bool().Draw(rt, "direct") && p.Algorithm != SlidingLog {
			p.Lease.Size = NoLease
		}
		tokens := rapid.Int64Range(int64(3*k), 400)
		limit := func(per time.Duration) Limit {
			l := Limit{Tokens: tokens.Draw(rt, "tokens"), Per: per}
			if p.Algorithm == TokenBucket {
				l.Burst = tokens.Draw(rt, "burst")
			}
			return l
		}
		p.Limit = limit(2 * second)
		p.Calendar = p.Algorithm == FixedWindow // so that it is known when windows begin
		if (p.Algorithm == TokenBucket || p.Algorithm == SlidingWindow) && rapid.Bool().Draw(rt, "two limits") {
			p.Also = []Limit{limit(3 * second)}
		}
		processes, restless := rapid.IntRange(1, 4).Draw(rt, "processes"), rapid.Bool().Draw(rt, "restless")
		seed := rapid.Uint64().Draw(rt, "seed")

		var all []ideal.Admission
		synctest.Test(t, func(t *testing.T) {
			store, start := newDistant(roundTrip), time.Now()
			var mu sync.Mutex
			var loads sync.WaitGroup
			for i := range processes {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				l := limiter(t, store, p, &Options{Random: dice(seed, uint64(1000+i))})
				loads.Go(func() {
					// two tokens a request: three times the limit
					pause := float64(p.Limit.nanosPerToken()) * float64(processes) / 1.5
					for time.Since(start) < 8*second {
						time.Sleep(time.Duration(random.ExpFloat64()*pause) + 1)
						if random.IntN(300) == 0 {
							// leases go back or end, buckets fill
							time.Sleep(time.Duration(random.Int64N(int64(3 * second))))
						}
						n := 1 + random.Int64N(3)
						if restless {
							l.group.shardSeed = random.Uint64()
						}
						before := time.Now().UnixNano()
						d := l.AllowN(context.Background(), "k", n)
						after := time.Now().UnixNano()
						mu.Lock()
						if d.Allowed {
							all = append(all, ideal.Admission{Before: before, After: after, Tokens: n})
						} else {
							refused++
						}
						if d.Remaining < 0 || d.Remaining > d.Burst ||
							d.Burst != p.limits()[max(d.LimitNumber, 1)-1].burst() {
							t.Errorf("%+v", d)
						}
						mu.Unlock()
					}
				})
			}
			loads.Wait()
			admitted += len(all)
		})
		for _, l := range p.limits() {
			if over := overBy(all, p.Algorithm, l, k); over > 0 {
				rt.Errorf("%v tokens over %+v", over, l)
			}
		}
	})
	if refused < 1000 || admitted < 1000 {
		t.Errorf("%d refused, %d admitted: this shows little", refused, admitted)
	}
}

// overBy is by how many tokens the worst interval of admissions exceeds a limit in k shards.
func overBy(all []ideal.Admission, a Algorithm, l Limit, k int) float64 {
	if a == TokenBucket {
		return ideal.Worst(all, l.Tokens, l.Per, l.burst()).Over - float64(k)*tolerance(l)
	}
	slices.SortFunc(all, func(a, b ideal.Admission) int { return int(a.Before - b.Before) })
	per, worst := int64(l.Per), int64(0)
	for i, first := range all {
		end := first.Before + per - int64(time.Microsecond) // Redis tells whole microseconds
		if a == FixedWindow {
			end = first.Before - first.Before%per + per
		}
		sum := int64(0)
		for _, a := range all[i:] {
			if a.Before >= end {
				break
			}
			if a.After < end {
				sum += a.Tokens
			}
		}
		worst = max(worst, sum)
	}
	return float64(worst - l.Tokens)
}

// Without Redis a process admits its share of the key, once: not for each shard, and from the first request on as
// much less as it had from either of its shards before.
func TestOneShareForAllShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 8
		store := newDistant(ms)
		store.Fail(errors.New("down"))
		total := 0
		for range processes {
			l := several(t, store, &Options{Processes: processes}, sharded("api", 80, 4))[0]
			n := 0
			for ; l.Allow(t.Context(), "k").Allowed; n++ {
			}
			if n != 10 {
				t.Errorf("a process of 8 admits %d of 80 alone, want 10", n)
			}
			if d := l.Allow(t.Context(), "k"); d.Reason != ShareSpent || d.Burst != 80 {
				t.Errorf("%+v", d)
			}
			total += n
		}
		if total > 80 {
			t.Errorf("%d of 80", total)
		}
	})
	for _, size := range []int64{NoLease, 0} {
		synctest.Test(t, func(t *testing.T) {
			store := newDistant(ms)
			p := sharded("api", 400, 4)
			p.Lease.Size = size
			l := several(t, store, &Options{Processes: 2}, p)[0] // a share of 200, as much as two shards have
			ctx := t.Context()
			n := 0
			for ; l.Allow(ctx, "k").Allowed; n++ {
				time.Sleep(ms)
			}
			if n < 190 {
				t.Fatalf("%d of two shards", n)
			}
			time.Sleep(2 * second) // leases have gone back
			store.Fail(errors.New("down"))
			alone := 0
			for ; l.Allow(ctx, "k").Allowed; alone++ {
			}
			if alone > 200-n+1 {
				t.Errorf("after %d from Redis the share of 200 admits %d more", n, alone)
			}
			// Once Redis is back, what the share admitted is charged, and the key is as it was.
			store.Fail(nil)
			time.Sleep(5 * second)
			if d := l.Allow(ctx, "k"); d.Allowed && n+alone >= 200 {
				t.Errorf("%+v", d)
			}
			books(t, l.group)
		})
	}
}

// An outage of the whole fleet costs no more than with one bucket: a burst while it lasts, once more at most until
// all processes know that it is over, and nobody is refused afterwards who stays within the limit: what was
// admitted without Redis is charged, but for what every shard threw away meanwhile.
func TestFleetInAnOutageOfAShardedKey(t *testing.T) {
	notUnderRace(t)
	for _, c := range []struct {
		demand      float64
		up          time.Duration // when the outage ends that begins after 3 s
		over, after float64       // tokens, at most: until the end of the outage, and in all
		denied      float64       // part of the requests after the outage, at most
	}{
		{3, 8 * second, 200, 400, 1},
		{0.5, 33 * second, 0, 0, 0.005}, // so long that a burst is little beside what was admitted
	} {
		down := func(at time.Duration, _ int) bool { return at > 3*second && at < c.up }
		f := fleetRun{
			processes: 20, known: 20, limit: thousand, demand: c.demand, mode: FailLocal, trip: roundTrip,
			length: c.up + 6*second, down: down,
		}
		f.shards = 4
		offers, _ := f.run(t, 1)
		w := worst(offers, thousand, 0, f.length)
		n, of := denied(offers, c.up, f.length)
		alone := 0
		for _, o := range offers {
			if o.reason == Shared {
				alone++
			}
		}
		t.Logf("demand %.1f: %d shared; %v; %d of %d refused after the outage", c.demand, alone, w, n, of)
		if until := worst(offers, thousand, 0, c.up); until.Over > c.over || w.Over > c.after {
			t.Errorf("demand %.1f: %v; %v", c.demand, until, w)
		}
		if float64(n) > c.denied*float64(of) {
			t.Errorf("demand %.1f: %d of %d refused after the outage", c.demand, n, of)
		}
		if alone < 1000 {
			t.Errorf("%d shared: this shows little", alone)
		}
	}
}

// apart is a Memory whose odd shards are on another node, which can be lost.
type apart struct {
	*distant
	mu      sync.Mutex
	lost    bool
	present map[remote.Node]int
}

func (a *apart) Node(bucket string) remote.Node {
	for _, odd := range []string{"/4.1.", "/4.3."} {
		if strings.Contains(bucket, odd) {
			return "odd"
		}
	}
	if !strings.Contains(bucket, "/4.") {
		return "" // as in a Cluster before anything was asked: a Group knows no node by itself
	}
	return "even"
}

func (a *apart) Nodes() []remote.Node { return []remote.Node{"odd", "even"} }

func (a *apart) TableNode() remote.Node { return "even" }

func (a *apart) Locate(_ context.Context, bucket string) (remote.Node, error) {
	return a.Node(bucket), nil
}

func (a *apart) gone(n remote.Node) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost && n == "odd"
}

func (a *apart) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if a.gone(a.Node(calls[0].Bucket)) {
		for i := range calls {
			results[i] = remote.Result{Err: errors.New("down")}
		}
		return
	}
	a.distant.Run(ctx, timeout, calls, results)
}

func (a *apart) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if a.gone(n) {
		return remote.Census{}, errors.New("down")
	}
	a.mu.Lock()
	a.present[n]++
	a.mu.Unlock()
	return a.distant.Presence(ctx, timeout, n, p)
}

// Where the node of the first shard is down and the second's is not, the second is asked before a refusal; and
// every process is counted at the nodes of all shards, though it uses two of them, for it has a share of all.
func TestShardsOnSeveralNodes(t *testing.T) {
	for _, mode := range []FailMode{FailClosed, FailLocal} {
		synctest.Test(t, func(t *testing.T) {
			store := &apart{distant: newDistant(ms), present: make(map[remote.Node]int)}
			p := sharded("api", 400, 4)
			p.FailMode = mode
			l := several(t, store, &Options{Processes: 40}, p)[0]
			ctx := t.Context()
			for i := uint64(1); ; i++ { // the first shard on the node that will be lost, the second on the other
				l.group.shardSeed = i
				if a, b := l.at("k"); a%2 == 1 && b%2 == 0 {
					break
				}
			}
			want(t, l.Allow(ctx, "k"), Granted)
			time.Sleep(4 * second)
			store.mu.Lock()
			if len(store.present) != 2 {
				t.Errorf("present at %v", store.present)
			}
			store.lost = true
			store.mu.Unlock()
			time.Sleep(10 * second) // presence finds out
			granted, shared := 0, 0
			for i := range 120 {
				d := l.Allow(ctx, "k")
				switch d.Reason {
				case Granted:
					granted++
				case Shared:
					shared++
				}
				if i == 50 {
					if s := All(l.For("k")).Allow(ctx); s.Reason != Granted {
						t.Errorf("%+v", s)
					}
				}
				time.Sleep(100 * ms)
			}
			s := l.group.Stats().Policies["api"]
			if mode == FailClosed && (granted != 99 || shared != 0 || s.Unavailable != 21 || s.Limited != 0) {
				t.Errorf("%d granted, want the 99 left of the second shard's 100; %+v", granted, s)
			}
			// The share of a fortieth is 10, of which the first grant has taken one.
			if mode == FailLocal && (granted != 99 || shared != 9 || s.ShareSpent != 12 || s.Limited != 0) {
				t.Errorf("%d granted, %d shared: %+v", granted, shared, s)
			}
			if d := l.Allow(ctx, "k"); mode == FailClosed && d.Reason != Unavailable ||
				mode == FailLocal && d.Reason != ShareSpent {
				t.Errorf("%+v", d)
			}
			books(t, l.group)
		})
	}
}

// If a policy has Shards, a process is counted at every node that the store knows, and otherwise at the nodes that it
// uses.
func TestShardsMeetAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &apart{distant: newDistant(ms), present: make(map[remote.Node]int)}
		g := several(t, store, nil, direct("plain", 80))[0].group
		counted := func() []remote.Node {
			time.Sleep(2 * dispatch.PresencePeriod)
			store.mu.Lock()
			defer store.mu.Unlock()
			return slices.Sorted(maps.Keys(store.present))
		}
		if at := counted(); len(at) != 0 {
			t.Errorf("counted at %v, and none is used", at)
		}
		if _, err := g.NewLimiter(sharded("split", 80, 4)); err != nil {
			t.Fatal(err)
		}
		if at := counted(); !slices.Equal(at, []remote.Node{"even", "odd"}) {
			t.Errorf("counted at %v", at)
		}
	})
}

// What a shard threw away in an outage pays for the processes that have it as their first: a fourth of them,
// rounded up. For all of them it would pay a fourth of what the whole threw away.
func TestShardPaysForItsOwnProcesses(t *testing.T) {
	l := several(t, remote.NewMemory(), nil, sharded("api", 80, 4), direct("plain", 80))
	for fleet, want := range map[int64]int64{1: 1, 3: 1, 4: 1, 5: 2, 20: 5, 21: 6} {
		for _, s := range l[0].shards {
			if got := s.fleetOf(fleet); got != want {
				t.Errorf("%d of %d processes, want %d", got, fleet, want)
			}
		}
		if got := l[1].fleetOf(fleet); got != fleet {
			t.Errorf("without shards: %d of %d", got, fleet)
		}
	}
}
