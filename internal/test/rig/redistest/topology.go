package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// Cluster is a Redis Cluster.
type Cluster struct {
	Servers  []*Server // primaries, at the start
	Replicas []*Server // of Servers, if there are any

	t       testing.TB
	ids     []string // of Servers, by which the nodes know each other
	clients []*redis.Client
}

// clusterSlots is the number of hash slots.
const clusterSlots = 16384

// clusterArgs make a server a node of a Cluster. A node that is silent for 2 s counts as failed.
var clusterArgs = []string{
	"--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
	"--cluster-node-timeout", "2000",
}

// StartCluster runs n primaries that share the slots in n equal ranges, in the order of Servers. It
// returns when each serves and knows all others: after about 2.5 s, most of which Redis insists on.
// The Cluster is killed at the end of the test.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	ctx := context.Background()
	c := &Cluster{t: t}
	for range n {
		s := start(t, OnCluster, clusterArgs...)
		client := s.Client()
		c.Servers, c.clients = append(c.Servers, s), append(c.clients, client)
	}
	for i, client := range c.clients {
		c.ids = append(c.ids, fatal.Get(client.Do(ctx, "cluster", "myid").Text())(t))
		// Nodes get different epochs: with equal ones they would first have to resolve which node
		// owns what.
		fatal.If(c.t, client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		fatal.If(c.t, client.ClusterAddSlotsRange(ctx, i*clusterSlots/n, (i+1)*clusterSlots/n-1).Err())
		for _, other := range c.Servers[:i] {
			fatal.If(c.t, client.Do(ctx, "cluster", "meet", "127.0.0.1", other.Port).Err())
		}
	}
	WaitFor(t, "the cluster is not ready", func() bool { return c.ready(1) })
	return c
}

// StartReplicatedCluster is [StartCluster] with a replica of each primary: Replicas[i] follows
// Servers[i]. It returns when every replica follows and every node knows it.
func StartReplicatedCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	ctx := context.Background()
	c := StartCluster(t, n)
	for i := range n {
		s := Start(t, clusterArgs...)
		replica := s.Client()
		fatal.If(c.t, replica.Do(ctx, "cluster", "meet", "127.0.0.1", c.Servers[i].Port).Err())
		WaitFor(t, "a replica does not know its primary", func() bool {
			return replica.Do(ctx, "cluster", "replicate", c.ids[i]).Err() == nil
		})
		c.Replicas = append(c.Replicas, s)
	}
	for _, s := range c.Replicas {
		s.follows()
	}
	WaitFor(t, "not all nodes know all replicas", func() bool { return c.ready(2) })
	return c
}

// ready reports whether every primary serves and knows of each range as many nodes as there are.
func (c *Cluster) ready(nodes int) bool {
	ctx := context.Background()
	for _, client := range c.clients {
		info, err := client.ClusterInfo(ctx).Result()
		if err != nil || !strings.Contains(info, "cluster_state:ok") {
			return false
		}
		ranges, err := slotRanges(ctx, client)
		other := func(r redis.ClusterSlot) bool { return len(r.Nodes) != nodes }
		if err != nil || len(ranges) != len(c.clients) || slices.ContainsFunc(ranges, other) {
			return false
		}
	}
	return true
}

// slotRanges returns the ranges of slots and their owners, as a node knows them.
func slotRanges(ctx context.Context, node *redis.Client) ([]redis.ClusterSlot, error) {
	//nolint:staticcheck // deprecated for CLUSTER SHARDS, which Redis 6.2 has not
	return node.ClusterSlots(ctx).Result()
}

// PrimaryOf asks a node of the Cluster for the owner of a slot, and returns its address.
func (c *Cluster) PrimaryOf(asked, slot int) string {
	ranges, err := slotRanges(context.Background(), c.clients[asked])
	if err != nil {
		return ""
	}
	for _, r := range ranges {
		if slot >= r.Start && slot <= r.End && len(r.Nodes) > 0 {
			return r.Nodes[0].Addr
		}
	}
	return ""
}

// Addrs returns the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, s := range c.Servers {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Owner returns the index of the node that had a slot at the start.
func (c *Cluster) Owner(slot int) int {
	n := len(c.Servers)
	for i := range n {
		if slot < (i+1)*clusterSlots/n {
			return i
		}
	}
	return n - 1
}

// Client returns a client of one node, with go-redis' default settings.
func (c *Cluster) Client(node int) *redis.Client { return c.clients[node] }

// Migrate starts to move a slot: its owner answers ASK for keys that it does not have.
func (c *Cluster) Migrate(slot, from, to int) {
	c.t.Helper()
	c.setSlot(to, slot, "importing", c.ids[from])
	c.setSlot(from, slot, "migrating", c.ids[to])
}

// Assign gives a slot to a node: all others answer MOVED. The former owner must have no keys in the
// slot.
func (c *Cluster) Assign(slot, to int) {
	c.t.Helper()
	c.setSlot(to, slot, "node", c.ids[to]) // the new owner first, or nobody would have it
	for i := range c.Servers {
		if i != to {
			c.setSlot(i, slot, "node", c.ids[to])
		}
	}
}

func (c *Cluster) setSlot(node, slot int, state, id string) {
	c.t.Helper()
	fatal.If(c.t, c.clients[node].Do(context.Background(), "cluster", "setslot", slot, state, id).Err())
}

// Sentinel is a primary and a replica, watched by one sentinel that decides alone.
type Sentinel struct {
	Name     string // by which the sentinel knows the primary
	Sentinel *Server
	Primary  *Server // at the start
	Replica  *Server
}

// StartSentinel runs the three processes. It returns when the replica follows the primary and the
// sentinel knows both. A primary that is silent for half a second is replaced. All processes are
// killed at the end of the test.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	ctx := context.Background()
	// By default a first synchronization waits five seconds for further replicas.
	s := &Sentinel{Name: "primary", Primary: Start(t, "--repl-diskless-sync-delay", "0")}
	s.Replica = Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(s.Primary.Port), "--repl-diskless-sync-delay", "0")
	s.Replica.follows()

	s.Sentinel = prepare(t, unguarded)
	config := filepath.Join(s.Sentinel.dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nlogfile redis.log\n"+
		"sentinel monitor %[3]s 127.0.0.1 %[4]d 1\n"+
		"sentinel down-after-milliseconds %[3]s 500\n"+
		"sentinel failover-timeout %[3]s 5000\n",
		s.Sentinel.Port, s.Sentinel.dir, s.Name, s.Primary.Port)
	fatal.If(t, os.WriteFile(config, []byte(text), 0o600))
	s.Sentinel.args = []string{config, "--sentinel"}
	s.Sentinel.Restart()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Sentinel.Addr})
	t.Cleanup(func() { _ = sentinel.Close() })
	WaitFor(t, "the sentinel does not find the replica", func() bool {
		replicas, err := sentinel.Replicas(ctx, s.Name).Result()
		return err == nil && len(replicas) == 1
	})
	return s
}

// follows returns when the server, a replica, has what its primary has.
func (s *Server) follows() {
	s.t.Helper()
	client := s.Client()
	WaitFor(s.t, "a replica does not follow its primary", func() bool {
		info, err := client.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
}
