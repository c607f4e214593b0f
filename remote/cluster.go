package remote

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// reloadEvery is the least time between two reloads of the slot map that the store asks for. While a node is down every
// call to it fails and asks; a reload is one CLUSTER SLOTS, and a new primary is elected within seconds.
const reloadEvery = time.Second

// cluster asks the ClusterClient, whose map of slots may have to be loaded first, and remembers the answers for those
// who may not wait: 128 KiB of pointers.
//
// The memory follows the client: a slot that moved is corrected by the next call to it that finds the client's map
// reloaded. Until then node names the former owner, which costs nothing but that the call is counted there.
type cluster struct {
	client *redis.ClusterClient
	owner  [slots]atomic.Pointer[Node]

	base   time.Time
	reload atomic.Int64 // ns since base from which on the map may be reloaded again
}

func newCluster(client *redis.ClusterClient) *cluster {
	return &cluster{client: client, base: time.Now()}
}

func (t *cluster) node(bucket string) Node {
	if n := t.owner[slotOf(bucket)].Load(); n != nil {
		return *n
	}
	return ""
}

func (t *cluster) pick(ctx context.Context, bucket string) (*redis.Client, error) {
	client, err := t.client.MasterForKey(ctx, bucket)
	if err != nil {
		t.stale(ctx)
		return nil, err
	}
	owner := &t.owner[slotOf(bucket)]
	if known := owner.Load(); known == nil || *known != nodeOf(client) {
		n := nodeOf(client)
		owner.Store(&n)
	}
	return client, nil
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
