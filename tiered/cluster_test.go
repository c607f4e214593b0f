package tiered

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// A master of a Cluster that is frozen, the worst way to die, concerns its own keys and no others: neither those that are
// known nor those that nobody has asked for yet, and not a process either that starts meanwhile and has yet to find out
// which node has which key.
func TestDeadMasterConcernsItsOwnKeys(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	for i := range c.Servers {
		must(t, c.Client(i), "CONFIG", "SET", "cluster-require-full-coverage", "no") // no replicas here, so no window of CLUSTERDOWN
	}
	const dead = 1
	victim := remote.Node(c.Servers[dead].Addr)
	url := "cluster://" + c.Servers[dead].Addr + "?addr=" + c.Servers[0].Addr + "&addr=" + c.Servers[2].Addr
	// Half a second is far beyond what a busy machine needs, and what a call that waits for another node's takes.
	options := &Options{Budget: 500 * ms, Timeout: 500 * ms}
	policy := Policy{Name: "api", Limit: PerSecond(1e6), Lease: Lease{Size: NoLease}, FailMode: FailOpen}
	start := func() *Limiter { return limiter(t, open(t, url), policy, options) }
	l := start()
	ctx := context.Background()

	// load asks for known and new keys from two goroutines and sorts the answers by whose keys they are.
	load := func(l *Limiter, name string, d time.Duration) (others, victims map[Reason]int, longest time.Duration) {
		others, victims = make(map[Reason]int), make(map[Reason]int)
		var mu sync.Mutex
		var all sync.WaitGroup
		for g := range 4 {
			all.Go(func() {
				for i, end := 0, time.Now().Add(d); time.Now().Before(end); i++ {
					key := fmt.Sprint(name, g, "-", i)
					if i%2 == 0 {
						key = fmt.Sprint("known", i%40)
					}
					begun := time.Now()
					d := l.Allow(ctx, key)
					took := time.Since(begun)
					node, err := l.group.store.Locate(ctx, l.group.store.Key("api", key))
					mu.Lock()
					if err != nil {
						t.Error(err)
					} else if node == victim {
						victims[d.Reason]++
					} else {
						others[d.Reason]++
						longest = max(longest, took)
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
				}
			})
		}
		all.Wait()
		return others, victims, longest
	}
	states := func(l *Limiter) string {
		text := ""
		for id, n := range l.group.Stats().Nodes {
			text += fmt.Sprintf("%q %s, ", id, n.Breaker)
			if remote.Node(id) != victim && n.Breaker != failover.Closed.String() {
				t.Errorf("the breaker of %q is %s", id, n.Breaker)
			}
		}
		return text
	}

	others, victims, longest := load(l, "before ", second)
	t.Logf("before: others %v, longest %v; victim's %v", others, longest, victims)
	if others[Open]+victims[Open] > 0 || victims[Granted] == 0 {
		t.Fatal("it does not work to begin with")
	}

	c.Servers[dead].Pause()
	others, victims, longest = load(l, "frozen ", 4*second)
	t.Logf("frozen: others %v, longest %v; victim's %v; %s", others, longest, victims, states(l))
	if others[Granted] < 100 || len(others) != 1 {
		t.Errorf("keys of the other nodes: %v", others)
	}
	if victims[Open] < 100 || l.group.node(victim).guard.State() == failover.Closed {
		t.Errorf("keys of the frozen node: %v", victims)
	}

	late := start()
	load(late, "late ", 2*second) // it may ask the frozen node for the map first
	others, victims, longest = load(late, "later ", 2*second)
	t.Logf("a process that starts now: others %v, longest %v; victim's %v; %s", others, longest, victims, states(late))
	if others[Granted] < 100 || len(others) != 1 || victims[Open] < 100 {
		t.Errorf("a process that starts now: others %v, victim's %v", others, victims)
	}

	c.Servers[dead].Resume()
	back := soon(t, "the node's keys are back", 10*second, func() bool {
		_, victims, _ := load(l, "after ", 100*ms)
		return victims[Open] == 0 && victims[Granted] > 0
	})
	t.Logf("back after %v; %s", back, states(l))
}
