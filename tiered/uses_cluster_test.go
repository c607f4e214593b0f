package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/proof/ideal"
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
	ctx := context.Background()
	uses := func(i int) tiered.Uses {
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

// Several processes on a real Redis take from the same keys, in overlapping sets: none of the keys exceeds its limit.
func TestAllKeepsEveryBoundOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	limits := []tiered.Limit{
		tiered.PerSecond(100).WithBurst(20), tiered.PerSecond(60).WithBurst(30),
		tiered.PerSecond(40).WithBurst(10),
	}
	var mu sync.Mutex
	var admissions [3][]ideal.Admission
	refused := 0
	few := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return refused < 50 || len(admissions[0]) < 50 || len(admissions[1]) < 50 || len(admissions[2]) < 50
	}
	const processes, callers = 4, 3
	var all sync.WaitGroup
	for range processes {
		var policies []tiered.Policy
		for i, limit := range limits {
			policies = append(policies, tiered.Policy{Name: fmt.Sprint("p", i), Limit: limit, FailMode: tiered.FailClosed})
		}
		l := several(t, open(t, server.URL()), patientOptions(nil), policies...)
		for g := range callers {
			all.Go(func() {
				for i, end := 0, time.Now().Add(3*second); time.Now().Before(end) || few(); i++ {
					set := [3]bool{i%2 == 0, (i+g)%3 > 0, i%5 > 0}
					var uses []tiered.Use
					for i, in := range set {
						if in {
							uses = append(uses, l[i].For("k"))
						}
					}
					before := time.Now()
					d := tiered.All(uses...).Allow(context.Background())
					after := time.Now()
					mu.Lock()
					for i, in := range set {
						if in && d.Allowed {
							admissions[i] = append(admissions[i],
								ideal.Admission{Before: before.UnixNano(), After: after.UnixNano(), Tokens: 1})
						}
					}
					if !d.Allowed {
						refused++
					}
					mu.Unlock()
					time.Sleep(5 * ms)
				}
			})
		}
	}
	all.Wait()
	for i, as := range admissions {
		// What was given back counted until then, so its refill meanwhile is not lost: at most the token of each caller. The
		// callers' own clocks are read before and after, so a slow machine only makes the check milder.
		late := float64(processes * callers)
		e := ideal.Worst(as, limits[i].Tokens, limits[i].Per, burstOf(limits[i]))
		t.Logf("p%d: %d admitted, worst: %v", i, len(as), e)
		if e.Over > late {
			t.Errorf("p%d: %v", i, e)
		}
	}
	t.Logf("%d refused", refused)
}
