package remote_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/ranclock"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// keyOn makes a key whose bucket is on a node; different i give different keys and slots.
func keyOn(c *redistest.Cluster, s remote.Store, node, i int) string {
	for n := 0; ; n++ {
		key := fmt.Sprintf("%d-%d", i, n)
		if c.Owner(remote.SlotOf(s.Key("test", key))) == node {
			return key
		}
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3)
	addr := func(node int) remote.Node { return remote.Node(c.Servers[node].Addr) }
	defaults := func(t *testing.T, cut *cutter) *remote.Redis {
		o := c.ClusterOptions(redis.ClusterOptions{})
		if cut != nil {
			o.Dialer = cut.dial
		}
		client := redis.NewClusterClient(o)
		t.Cleanup(func() { _ = client.Close() })
		return remote.NewRedis(client, nil)
	}
	slotOfKey := func(s remote.Store, key string) int { return remote.SlotOf(s.Key("test", key)) }

	t.Run("calls go to the nodes of their keys", func(t *testing.T) {
		for _, s := range []*remote.Redis{openStore(t, c.URL(0, 1)), defaults(t, nil)} {
			all := keys(60)
			for _, key := range all {
				if n := s.Node(s.Key("test", key)); n != "" {
					t.Errorf("%q is on %s before the first call", key, n)
				}
			}
			if nodes := s.Nodes(); len(nodes) != 0 {
				t.Errorf("%v are known before the first call", nodes)
			}
			takeAllFrom(t, s, all, chargedEach(t, defaults(t, nil), all))
			nodes := map[remote.Node]int{}
			for _, key := range all {
				name := s.Key("test", key)
				n := s.Node(name)
				nodes[n]++
				if want := addr(c.Owner(remote.SlotOf(name))); n != want {
					t.Errorf("%q is on %q, want %q", key, n, want)
				}
			}
			if len(nodes) != 3 {
				t.Errorf("nodes: %v", nodes)
			}
			known := s.Nodes()
			slices.Sort(known)
			if want := slices.Sorted(maps.Keys(nodes)); !slices.Equal(known, want) {
				t.Errorf("%v are known, want %v", known, want)
			}
		}
	})

	t.Run("one pipeline per node", func(t *testing.T) {
		client := redis.NewClusterClient(c.ClusterOptions(redis.ClusterOptions{
			ContextTimeoutEnabled: true, ReadTimeout: patience,
		}))
		defer client.Close()
		var count pipelines
		client.OnNewNode(func(node *redis.Client) { node.AddHook(&count) })
		s := remote.NewRedis(client, nil)
		calls, results := make([]lua.Call, 30), make([]remote.Result, 30)
		for i := range calls {
			calls[i] = takeOne(s, keyOn(c, s, i%3, i))
		}
		s.Run(t.Context(), patience, calls, results) // may meet NOSCRIPT
		count.sent.Store(0)
		s.Run(t.Context(), patience, calls, results)
		if n := count.sent.Load(); n != 3 {
			t.Errorf("%d pipelines", n)
		}
	})

	t.Run("presence is per node", func(t *testing.T) {
		a, b := openStore(t, c.URL(2)), defaults(t, nil)
		for node := range c.Servers {
			for i, s := range []*remote.Redis{a, b} {
				policies := []remote.AnnouncedPolicy{{Name: "both", Limits: fmt.Sprint(i)}, {Name: fmt.Sprint("only ", i)}}
				me := remote.Process{
					ID: fmt.Sprint("process ", i), TTL: time.Minute,
					Announced: remote.Announce("service", policies),
				}
				census, err := s.Presence(t.Context(), patience, addr(node), me)
				want := []remote.PolicyCensus{{Processes: int64(i + 1), OtherLimits: int64(i)}, {Processes: 1}}
				if err != nil || census.Processes != int64(i+1) || !slices.Equal(census.Policies, want) {
					t.Errorf("node %d: process %d: %+v, %v", node, i, census, err)
				}
			}
			n, err := c.Client(node).Keys(t.Context(), "tl:{~*").Result()
			if err != nil || len(n) != 1 {
				t.Errorf("node %d has the presence sets %q, %v", node, n, err)
			}
		}
		if _, err := a.Presence(t.Context(), patience, "nowhere:1", remote.Process{ID: "x", TTL: time.Minute}); err == nil {
			t.Error("an unknown node has presence")
		}
	})

	t.Run("a slot that is moving", func(t *testing.T) {
		s := defaults(t, nil)
		moving, stays := keyOn(c, s, 0, 100), keyOn(c, s, 0, 101)
		slot := slotOfKey(s, moving)
		takeAllFrom(t, s, []string{stays, keyOn(c, s, 1, 102)}, []int64{0, 0}) // the map is loaded
		c.Migrate(slot, 0, 1)
		// Its owner has no such bucket: ASK.
		takeAllFrom(t, s, []string{moving, stays}, []int64{0, 1})
		takeAllFrom(t, s, []string{moving}, []int64{1})

		// Now it has moved, and the client's map is old: MOVED.
		c.Assign(slot, 1)
		takeAllFrom(t, s, []string{moving, stays}, []int64{2, 2})
		for deadline := time.Now().Add(patience); s.Node(s.Key("test", moving)) != addr(1); {
			if time.Now().After(deadline) {
				t.Fatalf("the slot is still on %s", s.Node(s.Key("test", moving)))
			}
			charged(t, s, moving)
		}
	})

	t.Run("a slot that moved, to a node without the script", func(t *testing.T) {
		s := defaults(t, nil)
		key := keyOn(c, s, 0, 200)
		takeAllFrom(t, s, []string{keyOn(c, s, 0, 201)}, []int64{0})
		c.Assign(slotOfKey(s, key), 2)
		if err := c.Client(2).ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		takeAllFrom(t, s, []string{key}, []int64{0})
	})

	t.Run("a cut reply charges once", func(t *testing.T) {
		cut := &cutter{word: []byte("evalsha")}
		s := defaults(t, cut)
		all := []string{keyOn(c, s, 0, 300), keyOn(c, s, 1, 301), keyOn(c, s, 2, 302)}
		takeAllFrom(t, s, all, []int64{0, 0, 0})
		cut.on.Store(true)
		calls, results := make([]lua.Call, 3), make([]remote.Result, 3)
		for i, key := range all {
			calls[i] = takeOne(s, key)
		}
		s.Run(t.Context(), patience, calls, results)
		cut.on.Store(false)
		for i, key := range all {
			if n := charged(t, s, key); n != 2 || results[i].Err == nil {
				t.Errorf("%s: charged %d, %+v", key, n, results[i])
			}
		}
		if n := cut.cuts.Load(); n != 3 {
			t.Errorf("%d cuts", n)
		}
	})

	// redirected runs f with a store that knows node 0, and node 1 if so told, and a key whose slot
	// goes from one to the other.
	states := []string{"moving", "moved", "moving, to a node not seen before", "moved, to a node not seen before"}
	redirected := func(name string, first int, states []string, o redis.ClusterOptions,
		f func(t *testing.T, s *remote.Redis, key string, known bool),
	) {
		for i, state := range states {
			t.Run(name+": "+state, func(t *testing.T) {
				client := redis.NewClusterClient(c.ClusterOptions(o))
				t.Cleanup(func() { _ = client.Close() })
				s := remote.NewRedis(client, nil)
				n, known := first+10*i, i < 2
				key := keyOn(c, s, 0, n)
				takeAllFrom(t, s, []string{keyOn(c, s, 0, n+1)}, []int64{0})
				if known {
					takeAllFrom(t, s, []string{keyOn(c, s, 1, n+2)}, []int64{0})
				}
				if i%2 == 0 {
					c.Migrate(slotOfKey(s, key), 0, 1)
					defer c.Assign(slotOfKey(s, key), 1)
				} else {
					c.Assign(slotOfKey(s, key), 1)
				}
				f(t, s, key, known)
			})
		}
	}

	cut := &cutter{addr: c.Servers[1].Addr}
	redirected("a cut reply after a redirection charges once", 400, states, redis.ClusterOptions{Dialer: cut.dial},
		func(t *testing.T, s *remote.Redis, key string, known bool) {
			cut.word = []byte("evalsha")
			if !known {
				cut.word = []byte("\r\neval\r\n") // through go-redis, with the text
			}
			before := cut.cuts.Load()
			cut.on.Store(true)
			r := run(t, s, takeOne(s, key))
			cut.on.Store(false)
			if cuts := cut.cuts.Load() - before; r.Err == nil || cuts != 1 {
				t.Errorf("%+v after %d cuts", r, cuts)
			}
			if n := charged(t, s, key); n != 1 {
				t.Errorf("charged %d times", n)
			}
		})

	// go-redis rests before it follows a redirection. At its defaults that is longer than a caller
	// waits.
	redirected("a redirection is followed at once", 500, states[:2],
		redis.ClusterOptions{MinRetryBackoff: time.Hour, MaxRetryBackoff: time.Hour},
		func(t *testing.T, s *remote.Redis, key string, _ bool) {
			takeAllFrom(t, s, []string{key, keyOn(c, s, 2, 590)}, []int64{0, charged(t, s, keyOn(c, s, 2, 590))})
			takeAllFrom(t, s, []string{key}, []int64{1})
		})

	t.Run("presence while its slot moves", func(t *testing.T) {
		s := defaults(t, nil)
		first := 0
		for c.Owner(remote.SlotOf(s.Names().Presence(first))) != 2 {
			first++
		}
		if err := c.Client(2).Del(t.Context(), s.Names().Presence(first)).Err(); err != nil {
			t.Fatal(err)
		}
		slot := remote.SlotOf(s.Names().Presence(first))
		c.Migrate(slot, 2, 1)
		defer c.Assign(slot, 1)
		census, err := s.Presence(t.Context(), patience, addr(2), remote.Process{ID: "x", TTL: time.Minute})
		if err != nil || census.Processes != 1 {
			t.Errorf("%+v, %v", census, err)
		}
		if n, err := c.Client(2).Keys(t.Context(), "tl:{~*").Result(); err != nil || len(n) != 1 ||
			n[0] == s.Names().Presence(first) {
			t.Errorf("presence sets %q, %v", n, err)
		}
	})

	t.Run("concurrently", func(t *testing.T) {
		s := defaults(t, nil)
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				calls, results := make([]lua.Call, 9), make([]remote.Result, 9)
				for j := range calls {
					calls[j] = takeOne(s, keyOn(c, s, j%3, 600+j))
				}
				for range 5 {
					s.Run(t.Context(), patience, calls, results)
					for j, r := range results {
						if r.Err != nil {
							t.Errorf("caller %d, call %d: %v", i, j, r.Err)
						}
						_ = s.Node(calls[j].Bucket)
					}
				}
			})
		}
		all.Wait()
		if n := charged(t, s, keyOn(c, s, 0, 600)); n != 30 {
			t.Errorf("charged %d", n)
		}
	})

	t.Run("a frozen node", func(t *testing.T) {
		s := defaults(t, nil)
		calls, results := make([]lua.Call, 3), make([]remote.Result, 3)
		for i := range calls {
			calls[i] = takeOne(s, keyOn(c, s, i, 700+i))
		}
		s.Run(t.Context(), patience, calls, results)
		c.Servers[1].Pause()
		defer c.Servers[1].Resume()
		clock := ranclock.New(t)
		begun := clock.Now()
		s.Run(t.Context(), time.Second, calls, results) // a second, in which a busy machine lets the others answer
		if took := clock.Since(begun); took > 1500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		for i, r := range results {
			if (r.Err == nil) == (i == 1) {
				t.Errorf("node %d: %+v", i, r)
			}
		}
	})
}

// A ClusterClient at its defaults looks for the successor of a dead node once a minute; the store
// has it look at once, but not at every failure.
func TestClusterFindsSuccessor(t *testing.T) {
	old, successor := redistest.Start(t), redistest.Start(t)
	var loads atomic.Int64
	var primary atomic.Pointer[string]
	primary.Store(&old.Addr)
	access := old.Options(redis.Options{})
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Username: access.Username, Password: access.Password, Protocol: access.Protocol,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			loads.Add(1)
			return []redis.ClusterSlot{{
				Start: 0, End: 16384 - 1,
				Nodes: []redis.ClusterNode{{Addr: *primary.Load()}},
			}}, nil
		},
	})
	defer client.Close()
	s := remote.NewRedis(client, nil)
	bucket := s.Key("test", "x")
	takeAll(t, s, []string{"x"})
	// A map from a function has no origin, and go-redis then cuts the host off a loopback address.
	is := func(n remote.Node, server *redistest.Server) bool { return string(n) == fmt.Sprint(":", server.Port) }
	if n := s.Node(bucket); !is(n, old) || loads.Load() != 1 {
		t.Fatalf("node %q after %d loads", n, loads.Load())
	}

	old.Kill()
	fail := func() error {
		var r [1]remote.Result
		s.Run(t.Context(), 50*time.Millisecond, []lua.Call{takeOne(s, "x")}, r[:])
		return r[0].Err
	}
	begun := time.Now()
	for range 5 {
		if fail() == nil {
			t.Fatal("a dead server answers")
		}
	}
	if n, most := loads.Load(), int64(2+time.Since(begun)/time.Second); n > most {
		t.Errorf("%d loads, at most %d were due", n, most)
	}
	primary.Store(&successor.Addr)
	for fail() != nil {
		if time.Since(begun) > patience {
			t.Fatal("the successor is not found")
		}
	}
	t.Logf("found after %v and %d loads", time.Since(begun), loads.Load())
	if n := s.Node(bucket); !is(n, successor) {
		t.Errorf("node %q", n)
	}
}

func chargedEach(t *testing.T, s remote.Store, keys []string) []int64 {
	t.Helper()
	n := make([]int64, len(keys))
	for i, key := range keys {
		n[i] = charged(t, s, key)
	}
	return n
}
