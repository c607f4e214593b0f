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

// reloadEvery is the least time between two reloads of the slot map that the store asks for. While a node is down every
// call to it fails and asks; a reload is one CLUSTER SLOTS, and a new primary is elected within seconds.
const reloadEvery = time.Second

// cluster asks the ClusterClient. Its map of slots is asked for once, by the first pick; from then on the client answers from
// memory, and what it has learned of nodes that went and came counts at once.
type cluster struct {
	client *redis.ClusterClient
	loaded atomic.Bool // the client has a map; it keeps one for ever

	seen atomic.Pointer[map[string]*redis.Client] // by address, the nodes that were picked; replaced as a whole

	base   time.Time
	reload atomic.Int64 // ns since base from which on the map may be reloaded again
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

// all asks for every sixteenth slot: the client does not say what nodes it knows. An even Cluster of a thousand nodes, the most
// there may be, has sixteen slots a node.
func (t *cluster) all() (nodes []Node) {
	for _, name := range everySixteenth() {
		if n := t.node(name); n != "" && !slices.Contains(nodes, n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// everySixteenth are names that lie in the slots 0, 16, 32 and so on. The CRC of two bytes takes every value.
var everySixteenth = sync.OnceValue(func() []string {
	names := make([]string, slots/16)
	for i := range 1 << 16 {
		name := string([]byte{byte(i >> 8), byte(i)})
		if slot := slotOf(name); slot%16 == 0 {
			names[slot/16] = name
		}
	}
	return names
})

func (t *cluster) pick(ctx context.Context, bucket string) (*redis.Client, error) {
	client, err := t.client.MasterForKey(ctx, bucket)
	if err != nil {
		t.stale(ctx)
		return nil, err
	}
	t.loaded.Store(true)
	t.see(client)
	return client, nil
}

// mostNodes bounds what is kept of nodes that came and went: as many as a Cluster may have.
const mostNodes = 1000

// see notes the client of a node. Of two that come at once one may be forgotten, until it is picked again.
func (t *cluster) see(client *redis.Client) {
	addr := client.Options().Addr
	known := t.seen.Load()
	if known != nil && (*known)[addr] == client {
		return
	}
	all := make(map[string]*redis.Client)
	if known != nil && len(*known) < mostNodes {
		maps.Copy(all, *known)
	}
	all[addr] = client
	t.seen.CompareAndSwap(known, &all)
}

func (t *cluster) at(addr string) *redis.Client {
	if known := t.seen.Load(); known != nil {
		return (*known)[addr]
	}
	return nil
}

func (t *cluster) router() redis.UniversalClient { return t.client }

// stale has the client reload its map, in a goroutine of its own and at most once in reloadEvery. The client does so by
// itself only after a redirection and once a minute, not when a node is gone.
func (t *cluster) stale(ctx context.Context) {
	now, next := int64(time.Since(t.base)), t.reload.Load()
	if now >= next && t.reload.CompareAndSwap(next, now+int64(reloadEvery)) {
		t.client.ReloadState(ctx)
	}
}
