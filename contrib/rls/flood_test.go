package rls_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls"
	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/testgroup"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// More values than the process keeps cannot fill its memory. Those that it does not keep are in
// Redis.
func TestFloodOfValues(t *testing.T) {
	const kept, values, each = 2000, 60_000, 100
	g := testgroup.New(t, remote.NewRedis(redistest.Start(t).StoreClient(), nil), &tiered.Options{
		Processes: 1, MaxKeys: kept, Logger: slog.New(slog.DiscardHandler), Budget: 5 * time.Second,
	})
	s := fatal.Get(rls.New(g, nil))(t)
	use(t, s, behavior.Config)
	ask := func(from, hits int) (refused int) { // so many values at once
		r := behavior.Request("shop")
		for i := range each {
			r.Descriptors = append(r.Descriptors, behavior.Request(fmt.Sprintf("shop | user=%d +%d", from+i, hits)).GetDescriptors()...)
		}
		answer := fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
		for _, is := range answer.GetStatuses() {
			if is.GetCode() == pb.RateLimitResponse_OVER_LIMIT {
				refused++
			}
		}
		return refused
	}
	for i := 0; i < kept; i += each { // what a process with all its keys has
		ask(i, 1)
	}
	before := heap()
	for i := kept; i < values; i += each {
		if n := ask(i, 3); n > 0 {
			t.Fatalf("%d of %d new values are refused", n, each)
		}
	}
	grown, is := int64(heap())-int64(before), g.Stats()
	t.Logf("%d values: %d are kept, %d were evicted, the heap has %d bytes and grew by %d", values, is.Keys, is.Evictions, before, grown)
	if is.Keys > kept || grown > 2<<20 {
		t.Errorf("%d keys, want %d; the heap grew by %d bytes", is.Keys, kept, grown)
	}
	if n := ask(kept, 1); n != each { // evicted long ago
		t.Errorf("%d of %d values that have used their limit are refused", n, each)
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Long values cannot fill the memory: a process keeps some 200 bytes of each.
func TestFloodOfLongValues(t *testing.T) {
	s, g := serviceOfGroup(t, remote.NewRedis(redistest.Start(t).StoreClient(), nil), behavior.Config, nil)
	before, long := heap(), strings.Repeat("x", 60_000)
	const calls = 1000
	for i := range calls {
		r := behavior.Request("shop | user=")
		r.Descriptors[0].Entries[0].Value = long + fmt.Sprint(i)
		fatal.Get(s.ShouldRateLimit(t.Context(), r))(t)
	}
	if keys := g.Stats().Keys; keys != calls {
		t.Errorf("%d keys, want %d", keys, calls)
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("%d bytes for %d keys of 60 kB", grown, calls)
	}
}

// Calls go on while the configuration changes, and each one has an answer.
func TestCallsDuringChanges(t *testing.T) {
	s := newService(t, remote.NewMemory(), behavior.Config, nil)
	var callers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for i := range 3 {
		r := behavior.Request([]string{
			"shop | user=a | batch=b +2 | user=x limit=5/day", "shop | tenant=c path=/x | admin=1",
			"shop | user=q limit=9/month | cheap=1 | dear=2",
		}[i])
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.ShouldRateLimit(context.Background(), r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 20 {
		use(t, s, strings.ReplaceAll(behavior.Config, "year, requests_per_unit: 3", "day, requests_per_unit: 4"))
		use(t, s, "domain: shop")
		use(t, s, behavior.Config)
	}
	stop()
	callers.Wait()
}
