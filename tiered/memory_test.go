package tiered_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// generous is a store that grants everything and remembers nothing: what is left is the process'
// side.
type generous struct{ *remote.Memory }

func (generous) Run(_ context.Context, _ time.Duration, calls []lua.Call, results []remote.Result) {
	for i := range calls {
		c := &calls[i]
		results[i] = remote.Result{Reply: lua.Reply{
			Grant: c.Want, Level: c.Cap - c.Want, TTLLeft: c.TTL, Now: time.Now().UnixMicro(), Epoch: 1,
		}}
	}
}

// heapInUse reports the bytes in use after a collection.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what a finalizer or a pool held is gone the second time
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestRatiosMemory measures what a key costs in the process, at a million keys of 16 bytes in `make
// ratios`, at a tenth of that elsewhere. The key itself is 16 of them.
func TestRatiosMemory(t *testing.T) {
	if race.On {
		t.Skip("the race detector has its own memory")
	}
	keys := 100_000
	if os.Getenv("TIERED_TEST_RATIOS") != "" {
		keys = 1_000_000
	}
	for _, c := range []struct {
		name  string
		bytes float64
		asks  int // per key: demand is known after the second, and the third leases
		lease bool
	}{
		{"bytes per direct key in the process", 420, 1, false},
		{"bytes per leased key in the process", 600, 3, true},
	} {
		bubble(t, c.name, func(t *testing.T) { // no lease ends while a busy machine does something else
			before := heapInUse()
			l := must(tiered.New(generous{remote.NewMemory()},
				tiered.Policy{
					Name: "api", Limit: tiered.Limit{Tokens: 1000, Per: 24 * time.Hour},
					Lease: tiered.Lease{Period: time.Minute},
				},
				&tiered.Options{MaxKeys: keys + keys/8, Budget: time.Minute, Timeout: time.Minute}))
			defer l.Close(ctx)
			for range c.asks {
				time.Sleep(time.Millisecond)
				for i := range keys {
					if d := l.Allow(ctx, fmt.Sprintf("%016d", i)); !d.Allowed {
						t.Fatalf("%+v", d)
					}
				}
			}
			after := heapInUse()
			leased := 0
			tiered.Engine(l.Group()).Cache.All(func(b *engine.Bucket) {
				if held, _ := b.Peek(tiered.Engine(l.Group()).Now()); held > 0 {
					leased++
				}
			})
			if s := l.Group().Stats(); s.Keys != keys || c.lease && leased != keys || !c.lease && leased > 0 {
				t.Fatalf("%d keys, %d of them leased, want %d", s.Keys, leased, keys)
			}
			line := ratio.Line{Name: c.name, Value: float64(after-before) / float64(keys), Bound: c.bytes}
			fmt.Println(line)
			if !line.Holds() {
				t.Error(line)
			}
		})
	}
}

// The allocator rounds the size of a bucket up to a size class, so one more word would cost 32
// bytes per key.
func TestBucketFitsItsSizeClass(t *testing.T) {
	if n := unsafe.Sizeof(engine.Bucket{}); n > 256 {
		t.Errorf("%d bytes, want 256 at most", n)
	}
}

// A policy that nobody asks is small, and so are its figures: a service may have tens of thousands
// of rules.
func TestPoliciesThatNobodyAsksAreSmall(t *testing.T) {
	if race.On {
		t.Skip("the race detector has its own memory")
	}
	heap := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC() // pools keep what they have for one more
		runtime.ReadMemStats(&m)
		return m
	}
	const n = 2000
	all := make([]tiered.Policy, n)
	for i := range all {
		all[i] = tiered.Policy{
			Name: fmt.Sprintf("rule%d", i), Limit: tiered.PerMinute(100), Algorithm: tiered.FixedWindow, Calendar: true,
		}
	}
	var stats tiered.Stats
	each, figures := int64(math.MaxInt64), int64(math.MaxInt64)
	for range 3 { // others allocate meanwhile
		g := must(tiered.NewGroup(remote.NewMemory(), nil))
		defer g.Close(ctx)
		empty := heap()
		ok(t, g.SetPolicies(all))
		made := heap()
		stats = g.Stats()
		each = min(each, int64(made.HeapAlloc-empty.HeapAlloc)/n)
		figures = min(figures, int64(heap().TotalAlloc-made.TotalAlloc)/n)
	}
	t.Logf("a policy has %d bytes, and its figures take %d", each, figures)
	if each > 3000 || figures > 1300 {
		t.Error("want at most 3000 and 1300")
	}
	if p := stats.Policies["rule7"]; len(stats.Policies) != n || p.Requests != (tiered.PolicyStats{}).Requests ||
		p.RedisTime.Count != 0 || len(p.RedisTime.Buckets) == 0 {
		t.Errorf("%d policies; %+v", len(stats.Policies), p)
	}
	runtime.KeepAlive(all)
}

// What nobody can use any more is forgotten: a removed policy takes no memory once its keys are
// gone.
func TestRemovedPoliciesAreForgotten(t *testing.T) {
	g := must(tiered.NewGroup(remote.NewMemory(), nil))
	defer func() { _ = g.Close(ctx) }()
	set := func(version int) {
		var all []tiered.Policy
		for i := range 100 {
			all = append(all, tiered.Policy{Name: fmt.Sprintf("v%d-rule-%d", version, i), Limit: tiered.PerSecond(10)})
		}
		ok(t, g.SetPolicies(all))
		for _, p := range all {
			l, _ := g.Limiter(p.Name)
			l.Allow(ctx, "user")
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for v := range 3 {
		set(v)
	}
	before := heap()
	const times = 100
	for v := range times {
		set(3 + v)
		runtime.GC() // a heap that other tests have filled is collected rarely, and only then is a Limiter forgotten
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("after %d reloads of 100 policies the heap has %d kB more: %d bytes for each removed policy", times,
			grown>>10, grown/times/100)
	}
	runtime.KeepAlive(g)
}

// However many keys somebody asks for, shares need no more memory and the process keeps none of
// them.
func TestStandingSharesOfManyKeys(t *testing.T) {
	keys := 10_000_000
	if testing.Short() {
		keys = 300_000
	}
	synctest.Test(t, func(t *testing.T) {
		p := fleetOf(t, remote.NewMemory(), 1, standingPolicy("api"))[0]
		l := limiterOf(t, p, "api")
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range keys {
			if d := l.Allow(ctx, strconv.Itoa(i)); !d.Allowed || d.Tier != tiered.Local {
				t.Fatalf("key %d: %+v", i, d)
			}
			if i%10_000 == 0 {
				time.Sleep(100 * time.Millisecond) // keys that meet in a place share what is refilled there
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 1<<20 {
			t.Errorf("%d bytes for %d keys", n, keys)
		}
		if n := p.Stats().Keys; n != 0 {
			t.Errorf("the process keeps %d keys", n)
		}
	})
}
