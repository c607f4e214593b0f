package rls_test

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/race"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ratio"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// What a value that was never seen before costs: garbage decides how far the memory of a service is
// above what it keeps. They are lines of `make ratios`.
func TestRatiosNewValue(t *testing.T) {
	if race.On {
		t.Skip("allocations are counted without the race detector")
	}
	const each = 16 // descriptors of a call
	values := 16_000
	if os.Getenv("TIERED_TEST_RATIOS") != "" {
		values = 100_000
	}
	g := testgroup.New(t, remote.NewRedis(redistest.Start(t).StoreClient(), nil), &tiered.Options{
		Processes: 1, MaxKeys: 2 * values, Logger: slog.New(slog.DiscardHandler), Budget: 5 * time.Second,
	})
	s := fatal.Get(rls.New(g, nil))(t)
	use(t, s, behavior.Config)
	requests := func(from, to int) (all []*pb.RateLimitRequest) {
		for i := from; i < to; i += each {
			r := behavior.Request("shop")
			for j := range each {
				r.Descriptors = append(r.Descriptors, behavior.Request(fmt.Sprintf("shop | user=%08d", i+j)).GetDescriptors()...)
			}
			all = append(all, r)
		}
		return all
	}
	ask := func(all []*pb.RateLimitRequest) {
		for _, r := range all {
			if a := fatal.Get(s.ShouldRateLimit(t.Context(), r))(t); a.GetOverallCode() != pb.RateLimitResponse_OK {
				t.Fatalf("a new value is refused: %v", a)
			}
		}
	}
	ask(requests(-1600, 0)) // connections, and what is made once
	all := requests(0, values)
	var before, after runtime.MemStats
	kept := heap()
	runtime.ReadMemStats(&before)
	ask(all)
	runtime.ReadMemStats(&after)
	kept = heap() - kept
	runtime.KeepAlive(all)
	if n := g.Stats().Keys; n < values {
		t.Fatalf("%d keys, want %d", n, values)
	}
	per := func(n uint64) float64 { return float64(n) / float64(values) }
	for _, line := range []ratio.Line{
		{Name: "bytes that a new value of tieredd allocates", Value: per(after.TotalAlloc - before.TotalAlloc), Bound: 2000},
		{Name: "allocations of a new value of tieredd", Value: per(after.Mallocs - before.Mallocs), Bound: 18},
		{Name: "bytes of a value that tieredd keeps", Value: per(kept), Bound: 700},
	} {
		fmt.Println(line)
		if !line.Holds() {
			t.Error(line)
		}
	}
}
