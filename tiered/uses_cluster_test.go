package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// witness is a Redis whose pipelines are counted, by node.
type witness struct {
	*remote.Redis
	mu    sync.Mutex
	runs  map[remote.Node]int
	mixed bool // a pipeline had calls for two nodes
}

func (w *witness) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	w.mu.Lock()
	n := w.Node(calls[0].Bucket)
	for _, c := range calls {
		w.mixed = w.mixed || w.Node(c.Bucket) != n
	}
	w.runs[n]++
	w.mu.Unlock()
	w.Redis.Run(ctx, timeout, calls, results)
}

// In a Cluster user, address and tenant lie in different slots, on different nodes: one pipeline for each node.
func TestAllInACluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	w := &witness{Redis: open(t, "cluster://"+c.Servers[0].Addr), runs: make(map[remote.Node]int)}
	l := several(t, w, patientOptions(nil), direct("user", 3), direct("ip", 100), direct("tenant", 100), direct("token",
		100))
	uses := func(i int) tiered.Use {
		key := fmt.Sprint(i)
		return tiered.All(l[0].For(key), l[1].For(key), l[2].For(key), l[3].For(key), l[1].For("b"+key),
			l[2].For("b"+key))
	}
	for i := range 50 { // finds the nodes
		l[1].Allow(ctx, fmt.Sprint("node", i))
	}
	several := 0
	for i := range 100 {
		w.mu.Lock()
		w.runs, w.mixed = make(map[remote.Node]int), false
		w.mu.Unlock()
		want(t, uses(i).Allow(ctx), tiered.Granted)
		w.mu.Lock()
		if w.mixed {
			t.Error("a pipeline had calls for two nodes")
		}
		for n, runs := range w.runs {
			if runs != 1 {
				t.Errorf("%d pipelines to %s, want one", runs, n)
			}
		}
		if len(w.runs) > 1 {
			several++
		}
		w.mu.Unlock()
	}
	if several < 90 {
		t.Errorf("only %d of 100 requests concerned several nodes: this shows little", several)
	}
	for i := range 100 {
		for range 2 {
			want(t, uses(i).Allow(ctx), tiered.Granted)
		}
		d := uses(i).Allow(ctx)
		if want(t, d, tiered.Limited); d.Policy != "user" {
			t.Fatalf("%+v, want the user's", d)
		}
	}
	// What the others gave comes back, to each node.
	soon(t, "what was given back is there", 10*second, func() bool {
		for i := range 100 {
			if d := l[1].Peek(ctx, fmt.Sprint(i)); d.Remaining != 97 {
				return false
			}
		}
		return true
	})
	books(t, l[0].Group())
}
