package tiered_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// generous is a store that grants everything and remembers nothing: what is left is the process' side.
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

// TestRatiosMemory measures what a key costs in the process, at a million keys of 16 bytes in `make ratios`, at a
// tenth of that elsewhere. The key itself is 16 of them.
func TestRatiosMemory(t *testing.T) {
	if underRace {
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
		t.Run(c.name, func(t *testing.T) {
			before := heapInUse()
			l := must(tiered.New(generous{remote.NewMemory()},
				tiered.Policy{
					Name: "api", Limit: tiered.Limit{Tokens: 1000, Per: 24 * time.Hour},
					Lease: tiered.Lease{Period: time.Minute},
				},
				&tiered.Options{MaxKeys: keys + keys/8, Budget: time.Minute, Timeout: time.Minute}))
			defer l.Close(ctx)
			for range c.asks {
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

// The allocator rounds the size of a bucket up to a size class, so one more word would cost 32 bytes per key.
func TestBucketFitsItsSizeClass(t *testing.T) {
	if n := unsafe.Sizeof(engine.Bucket{}); n > 256 {
		t.Errorf("%d bytes, want 256 at most", n)
	}
}
