package remote

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// reloadEvery is the least time between two reloads of the slot map that the store requests. While
// a node is down, every call to it fails and requests one. A reload is one CLUSTER SLOTS, and a new
// primary is elected within seconds.
const reloadEvery = time.Second

// cluster is the topology of a ClusterClient. The first pick loads the client's slot map. From then
// on the client answers from memory, and what it learns about added and removed nodes counts at
// once.
type cluster struct {
	client *redis.ClusterClient
	loaded atomic.Bool // the client has a slot map; it never drops it again

	// seen holds the nodes that were picked, by address. The map is replaced, never changed.
	seen atomic.Pointer[map[string]*redis.Client]

	base   time.Time
	reload atomic.Int64 // time since base in ns before which the map is not reloaded again
}

func newCluster(client *redis.ClusterClient) *cluster {
	return &cluster{client: client, base: time.Now()}
}

func (t *cluster) node(bucket string) Node {
	if !t.loaded.Load() {
		return ""
	}
	client, err := t.client.MasterForKey(context.Background(), bucket)
	if err != nil {
		return "" // the client is closed
	}
	return nodeOf(client)
}

// all asks for the node of every 16th slot, because the client does not list the nodes that it
// knows. A Cluster has at most 1000 nodes, so with an even distribution each of them has at least
// 16 slots.
func (t *cluster) all() (nodes []Node) {
	for _, name := range sampleNames() {
		if n := t.node(name); n != "" && !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// sampleNames returns names in the slots 0, 16, 32 and so on. The CRC of two bytes takes every
// value.
var sampleNames = sync.OnceValue(func() []string {
	names := make([]string, slots/16)
	for i := range 1 << 16 {
		name := string([]byte{byte(i >> 8), byte(i)})
		if slot := slotOf(name); slot%16 == 0 {
			names[slot/16] = name
		}
	}
	return names
})

// slots is the number of hash slots of a Redis Cluster (Redis Cluster Specification, "Key
// distribution model").
const slots = 16384

// slotOf returns the hash slot of a name without a hash tag, as every Cluster node computes it: its
// CRC-16/XMODEM, most significant bit first, starting at 0.
func slotOf(name string) int {
	const polynomial = 0x1021 // x¹⁶ + x¹² + x⁵ + 1, without its highest power
	crc := uint16(0)
	for i := range len(name) {
		crc ^= uint16(name[i]) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= polynomial
			}
		}
	}
	return int(crc) % slots
}

func (t *cluster) pick(ctx context.Context, bucket string) (*redis.Client, error) {
	client, err := t.client.MasterForKey(ctx, bucket)
	if err != nil {
		t.stale(ctx)
		return nil, err
	}
	t.loaded.Store(true)
	t.remember(client)
	return client, nil
}

// maxNodes bounds what is kept of nodes that joined and left. A Cluster has at most 1000 nodes.
const maxNodes = 1000

// remember stores the client of a node. If two calls run at once, one of the two nodes may be
// dropped until it is picked again.
func (t *cluster) remember(client *redis.Client) {
	addr := client.Options().Addr
	known := t.seen.Load()
	if known != nil && (*known)[addr] == client {
		return
	}
	all := make(map[string]*redis.Client)
	if known != nil && len(*known) < maxNodes {
		maps.Copy(all, *known)
	}
	all[addr] = client
	t.seen.CompareAndSwap(known, &all)
}

// at returns the client of the node with an address, or nil if no bucket of the node was picked.
func (t *cluster) at(addr string) *redis.Client {
	if known := t.seen.Load(); known != nil {
		return (*known)[addr]
	}
	return nil
}

// stale reports that a call failed or went to the wrong node, so what is known of the nodes may be
// out of date. It makes the client reload its slot map in a goroutine of its own, at most once per
// reloadEvery. The client itself reloads after a redirection and once a minute, but not when a node
// is down.
func (t *cluster) stale(ctx context.Context) {
	now, next := int64(time.Since(t.base)), t.reload.Load()
	if now >= next && t.reload.CompareAndSwap(next, now+int64(reloadEvery)) {
		t.client.ReloadState(ctx)
	}
}
