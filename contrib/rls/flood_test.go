package rls

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/contrib/rls/internal/behavior"
	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Long values cannot fill the memory: a process keeps some 200 bytes of each.
func TestFloodOfLongValues(t *testing.T) {
	s := newService(t, remote.NewRedis(redistest.Start(t).StoreClient(), nil), behavior.Config, nil)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, long := heap(), strings.Repeat("x", 60_000)
	const calls = 1000
	for i := range calls {
		r := behavior.Request("shop | user=")
		r.Descriptors[0].Entries[0].Value = long + fmt.Sprint(i)
		if _, err := s.ShouldRateLimit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if keys := s.group.Stats().Keys; keys != calls {
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
