// Package manynodes has stores of several nodes for virtual time: a Cluster whose map of slots each
// client has to find first, and a Ring whose shards come and go.
package manynodes

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// slots is the number of slots. A bucket is in one of them, as is the table of standing shares: in
// slot 0.
const slots = 64

// Nodes are the servers. The nodes have one clock. A slot keeps its buckets and the table when it
// moves, and each node counts by itself which processes are present.
//
// All methods may be called concurrently.
type Nodes struct {
	kept *remote.Memory // buckets and table

	mu       sync.Mutex
	owners   [slots]remote.Node // "" for none
	presence map[remote.Node]*remote.Memory
	failure  error // of all calls; nil for none
}

// New returns nodes that have equal parts of the slots. The table is on the first.
func New(names ...remote.Node) *Nodes {
	n := &Nodes{kept: remote.NewMemory()}
	n.Share(names...)
	return n
}

// Share gives the nodes with these names equal parts of the slots. Without names nobody has any. A
// node without slots has left, and what it counted is lost.
func (n *Nodes) Share(names ...remote.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.owners {
		n.owners[i] = ""
		if len(names) > 0 {
			n.owners[i] = names[i*len(names)/slots]
		}
	}
	before := n.presence
	n.presence = make(map[remote.Node]*remote.Memory)
	for _, name := range names {
		if n.presence[name] = before[name]; n.presence[name] == nil {
			n.presence[name] = remote.NewMemory()
			n.presence[name].Fail(n.failure)
		}
	}
}

// Fail makes all calls fail from now on, also those of nodes that join. Fail(nil) ends it.
func (n *Nodes) Fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure = err
	n.kept.Fail(err)
	for _, m := range n.presence {
		m.Fail(err)
	}
}

// Kept returns the store of all buckets.
func (n *Nodes) Kept() *remote.Memory { return n.kept }

// Step sets the clock of all nodes by that much.
func (n *Nodes) Step(by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept.Step(by)
	for _, m := range n.presence {
		m.Step(by)
	}
}

// at returns the node of a slot.
func (n *Nodes) at(slot uint32) remote.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.owners[slot]
}

// all returns the nodes that have slots, by name.
func (n *Nodes) all() []remote.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.presence))
}

// slotOf returns the slot of a bucket.
func slotOf(bucket string) uint32 {
	h := uint32(2166136261) // FNV
	for i := range len(bucket) {
		h = (h ^ uint32(bucket[i])) * 16777619
	}
	return h % slots
}

// Client is one process' store.
type Client struct {
	*remote.Memory // for all that does not depend on the nodes
	nodes          *Nodes
	knows          atomic.Bool // the client has the map of slots
}

// Cluster returns a client that knows no node before it has located one.
func (n *Nodes) Cluster() *Client { return &Client{Memory: n.kept, nodes: n} }

// Ring returns a client that knows which nodes are up.
func (n *Nodes) Ring() *Client {
	c := n.Cluster()
	c.knows.Store(true)
	return c
}

func (c *Client) of(slot uint32) remote.Node {
	if !c.knows.Load() {
		return ""
	}
	return c.nodes.at(slot)
}

// Node returns the node of a bucket; see [remote.Store].
func (c *Client) Node(bucket string) remote.Node { return c.of(slotOf(bucket)) }

// TableNode returns the node of the table; see [remote.Store].
func (c *Client) TableNode() remote.Node { return c.of(0) }

// Nodes returns the nodes that have slots; see [remote.Store].
func (c *Client) Nodes() []remote.Node {
	if !c.knows.Load() {
		return nil
	}
	return c.nodes.all()
}

// Locate finds the map of slots; see [remote.Store].
func (c *Client) Locate(_ context.Context, bucket string) (remote.Node, error) {
	if len(c.nodes.all()) == 0 {
		return "", io.EOF
	}
	c.knows.Store(true)
	return c.Node(bucket), nil
}

// Run executes calls, if there is a node to execute them; see [remote.Store].
func (c *Client) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if len(c.nodes.all()) > 0 {
		c.nodes.kept.Run(ctx, timeout, calls, results)
		return
	}
	for i := range calls {
		results[i] = remote.Result{Err: io.EOF}
	}
}

// Presence records that a process is present at a node; see [remote.Store].
func (c *Client) Presence(
	ctx context.Context, timeout time.Duration, node remote.Node, p remote.Process,
) (remote.Census, error) {
	n, poll := c.nodes, p.Poll
	n.mu.Lock()
	m, home := n.presence[node], n.owners[0]
	n.mu.Unlock()
	if m == nil {
		return remote.Census{}, remote.ErrNoPresence
	}
	p.Poll = lua.Poll{}
	census, err := m.Presence(ctx, timeout, m.TableNode(), p)
	if poll.Seq > 0 && node == home {
		p.Poll = poll
		polled, pollErr := n.kept.Presence(ctx, timeout, n.kept.TableNode(), p)
		if census.Poll = polled.Poll; pollErr != nil {
			return census, pollErr
		}
	}
	return census, err
}

// Names returns names for nodes.
func Names(count int) (names []remote.Node) {
	for i := range count {
		names = append(names, remote.Node(fmt.Sprintf("node %d", i)))
	}
	return names
}
