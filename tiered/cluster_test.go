package tiered_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A frozen master of a Cluster, the worst way to die, affects only its own keys. It affects no
// other key, known or new, and no process that starts meanwhile and does not know the map of slots
// yet.
func TestDeadMasterConcernsItsOwnKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("16 s of real time")
	}
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	for i := range c.Servers {
		// no replicas here, so no window of CLUSTERDOWN
		command(t, c.Client(i), "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	const dead = 1
	victim := remote.Node(c.Servers[dead].Addr)
	url := "cluster://" + c.Servers[dead].Addr + "?addr=" + c.Servers[0].Addr + "&addr=" + c.Servers[2].Addr
	// Far beyond what a busy machine needs, and no more than a call takes that waits for the frozen
	// node's.
	options := &tiered.Options{Budget: 2 * second, Timeout: 2 * second}
	policy := tiered.Policy{Name: "api", Limit: tiered.PerSecond(1e6), Lease: neverLeased, FailMode: tiered.FailOpen}
	start := func() *tiered.Limiter { return limiter(t, open(t, url), policy, options) }
	l := start()

	// load asks for known and new keys from four goroutines and sorts the answers by whose keys
	// they are. It lasts longer where the machine is too busy for so many of each.
	load := func(l *tiered.Limiter, name string, d time.Duration, least int) (others, victims map[tiered.Reason]int,
		longest time.Duration,
	) {
		others, victims = make(map[tiered.Reason]int), make(map[tiered.Reason]int)
		var mu sync.Mutex
		var all sync.WaitGroup
		few := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return others[tiered.Granted] < least || victims[tiered.Granted]+victims[tiered.Open] < least
		}
		begun := time.Now()
		for g := range 4 {
			all.Go(func() {
				for i := 0; time.Since(begun) < d || few() && time.Since(begun) < time.Minute; i++ {
					key := fmt.Sprint(name, g, "-", i)
					if i%2 == 0 {
						key = fmt.Sprint("known", i%40)
					}
					begun := time.Now()
					d := l.Allow(ctx, key)
					took := time.Since(begun)
					node, err := tiered.Engine(l.Group()).Store.Locate(ctx, tiered.Engine(l.Group()).Store.Key("api", key))
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
	states := func(l *tiered.Limiter) string {
		text := ""
		for id, n := range l.Group().Stats().Nodes {
			text += fmt.Sprintf("%q %s, ", id, n.Outages.Breaker)
			if remote.Node(id) != victim && n.Outages.Breaker != failover.Closed.String() {
				t.Errorf("the breaker of %q is %s", id, n.Outages.Breaker)
			}
		}
		return text
	}

	others, victims, longest := load(l, "before ", second, 1)
	t.Logf("before: others %v, longest %v; victim's %v", others, longest, victims)
	if others[tiered.Open]+victims[tiered.Open] > 0 || victims[tiered.Granted] == 0 {
		t.Fatal("it does not work to begin with")
	}

	c.Servers[dead].Pause()
	others, victims, longest = load(l, "frozen ", 6*second,
		100) // the first two calls of each caller take as long as Timeout
	t.Logf("frozen: others %v, longest %v; victim's %v; %s", others, longest, victims, states(l))
	if others[tiered.Granted] < 100 || len(others) != 1 {
		t.Errorf("keys of the other nodes: %v", others)
	}
	if victims[tiered.Open] < 100 || tiered.Dispatch(l.Group()).Node(victim).State() == failover.Closed {
		t.Errorf("keys of the frozen node: %v", victims)
	}

	late := start()
	load(late, "late ", 6*second, 0) // it may ask the frozen node for the map first
	others, victims, longest = load(late, "later ", 2*second, 100)
	t.Logf("a process that starts now: others %v, longest %v; victim's %v; %s", others, longest, victims, states(late))
	if others[tiered.Granted] < 100 || len(others) != 1 || victims[tiered.Open] < 100 {
		t.Errorf("a process that starts now: others %v, victim's %v", others, victims)
	}

	c.Servers[dead].Resume()
	back := soon(t, "the node's keys are back", 10*second, func() bool {
		_, victims, _ := load(l, "after ", 100*ms, 0)
		return victims[tiered.Open] == 0 && victims[tiered.Granted] > 0
	})
	t.Logf("back after %v; %s", back, states(l))
}

// pair is a store of two nodes, of which one is dead, and which have to be found first.
type pair struct {
	*distant
	found atomic.Bool
}

const alive, deceased = remote.Node("alive"), remote.Node("deceased")

func (s *pair) of(bucket string) remote.Node {
	if strings.Contains(bucket, "dead") {
		return deceased
	}
	return alive
}

func (s *pair) Node(bucket string) remote.Node {
	if s.found.Load() {
		return s.of(bucket)
	}
	return ""
}

func (s *pair) Locate(_ context.Context, bucket string) (remote.Node, error) {
	if !s.found.Load() {
		time.Sleep(s.trip)
		s.found.Store(true)
	}
	return s.of(bucket), nil
}

func (s *pair) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	for _, c := range calls {
		if s.of(c.Bucket) == deceased {
			time.Sleep(2 * timeout) // the slowest node is waited for
			for i := range results {
				results[i] = remote.Result{Err: context.DeadlineExceeded}
			}
			return
		}
	}
	s.distant.Run(ctx, timeout, calls, results)
}

// A request for a key whose node is unknown waits until the node is found, and not for the slowest
// node.
func TestFirstCallsWaitForNoOtherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &pair{distant: newDistant(ms)}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(100), FailMode: tiered.FailOpen}, nil)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				dead := i%2 == 0
				begun := time.Now()
				d := l.Allow(ctx, map[bool]string{true: "dead ", false: "well "}[dead]+fmt.Sprint(i))
				took := time.Since(begun)
				if dead != (d.Reason == tiered.Open) || !dead && took > 10*ms {
					t.Errorf("%q: %v after %v", d.Key, d.Reason, took)
				}
			})
		}
		all.Wait()
		time.Sleep(100 * ms)
		nodes := l.Group().Stats().Nodes
		if nodes[""].Outages.Breaker != "closed" || nodes[""].Calls.Sent > 0 || nodes[string(alive)].Outages.Breaker != "closed" ||
			nodes[string(deceased)].Calls.Failed == 0 {
			t.Errorf("%+v", nodes)
		}
		store.found.Store(true)
	})
}

// If nodes cannot be found, that is an outage like any other: the breaker of the unnamed node
// opens, and probes try again.
func TestNodesThatCannotBeFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &lost{distant: newDistant(ms)}
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerHour(1000), FailMode: tiered.FailOpen}, nil)
		for _, slow := range []bool{false, true} {
			store.slow.Store(slow)
			store.gone.Store(true)
			for i := range 1000 {
				if d := l.Allow(ctx, fmt.Sprint(slow, i)); d.Reason != tiered.Open {
					t.Fatalf("%+v", d)
				}
				time.Sleep(5 * ms)
			}
			if n := store.tries.Swap(0); n < 5 || n > 20 {
				t.Errorf("tried %d times in 5 s, want the 3 that open the breaker and a probe each 0.5 to 1 s", n)
			}
			store.gone.Store(false)
			time.Sleep(1100 * ms)
			l.Allow(ctx, "probes")
			time.Sleep(50 * ms)
			want(t, l.Allow(ctx, fmt.Sprint("found", slow)), tiered.Granted)
			store.tries.Store(0)
		}
	})
}

// lost is a store whose one node has to be found each time, and at times cannot be.
type lost struct {
	*distant
	gone, slow atomic.Bool
	tries      atomic.Int64
}

func (s *lost) Node(string) remote.Node { return "" }

func (s *lost) Locate(context.Context, string) (remote.Node, error) {
	s.tries.Add(1)
	if s.gone.Load() {
		if s.slow.Load() {
			time.Sleep(2 * tiered.DefaultTimeout)
		}
		return "", io.EOF
	}
	return alive, nil
}

// moved is a store whose keys move from one node, which dies, to another.
type movedKeys struct {
	*distant
	now atomic.Pointer[remote.Node]
}

func (s *movedKeys) Node(string) remote.Node { return *s.now.Load() }

func (s *movedKeys) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if n != s.Node("") {
		return remote.Census{}, remote.ErrNoPresence
	}
	return s.distant.Presence(ctx, timeout, s.Memory.Node(""), p)
}

// A dead node whose keys have moved to another node is forgotten, with its breaker and its senders.
// Decisions continue. Keys move several times, because a node that is asked has up to MaxSenders
// goroutines: what a dead node leaves has to add up to more than that.
func TestNodeThatLeftIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deaths = 6 * dispatch.MaxSenders
		node := func(i int) *remote.Node {
			n := remote.Node(fmt.Sprint("node ", i))
			return &n
		}
		store := &movedKeys{distant: newDistant(ms)}
		store.now.Store(node(0))
		l := limiter(t, store, tiered.Policy{Limit: tiered.PerSecond(100), FailMode: tiered.FailOpen}, nil)
		ask := func(d time.Duration) (reasons map[tiered.Reason]int) {
			reasons = make(map[tiered.Reason]int)
			for end := tiered.Engine(l.Group()).Now() + d; tiered.Engine(l.Group()).Now() < end; time.Sleep(20 * ms) {
				reasons[l.Allow(ctx, "k").Reason]++
			}
			var all sync.WaitGroup
			for i := range 10 { // at once, so that they do not all make their own calls
				all.Go(func() { l.Allow(ctx, fmt.Sprint("k", i)) })
			}
			all.Wait()
			return reasons
		}
		ask(2 * time.Second)
		for i := range deaths {
			store.loseRequests.Store(true)
			ask(3 * time.Second)
			if n := tiered.Dispatch(l.Group()).Unhealthy(); n != 1 {
				t.Errorf("%d nodes in trouble", n)
			}
			store.now.Store(node(i + 1)) // a replica was promoted
			store.loseRequests.Store(false)
			ask(1500 * ms)
			if r := ask(10 * time.Second); r[tiered.Open] > 0 || r[tiered.Granted] == 0 {
				t.Errorf("from 1.5 s after the promotion: %v", r)
			}
			nodes := l.Group().Stats().Nodes
			if len(nodes) != 1 || nodes[string(*node(i + 1))].Outages.Breaker != "closed" || tiered.Dispatch(l.Group()).Unhealthy() != 0 {
				t.Errorf("%d in trouble, %+v", tiered.Dispatch(l.Group()).Unhealthy(), nodes)
			}
		}
		time.Sleep(100 * ms) // until the last call has ended
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if n := bytes.Count(stacks, []byte("dispatch.(*Node).send(")); n == 0 || n > dispatch.MaxSenders+1 {
			t.Errorf("%d senders, where one node has at most %d, and one at work:\n%s", n, dispatch.MaxSenders, stacks)
		}
	})
}

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

// In a Cluster user, address and tenant lie in different slots, on different nodes: one pipeline
// for each node.
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
