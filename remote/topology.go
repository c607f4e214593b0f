package remote

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// topology knows which node answers for a bucket. All methods may be called concurrently.
type topology interface {
	// node returns the node of a bucket without I/O, or "" if it is not known.
	node(bucket string) Node

	// all returns the nodes that buckets may be on, without I/O.
	all() []Node

	// pick returns the client of a bucket's node, or nil if that is the store's foreign client. It
	// may do I/O to find the node, bounded by ctx.
	pick(ctx context.Context, bucket string) (*redis.Client, error)
}

// nodeOf names the node of a client by its address, which is unique among the nodes of a store.
func nodeOf(client *redis.Client) Node {
	if client == nil {
		return "redis"
	}
	return Node(client.Options().Addr)
}

// single is the topology of one node: a server, the primary behind Sentinel, or a foreign client
// (nil).
type single struct{ client *redis.Client }

func (t single) node(string) Node { return nodeOf(t.client) }

func (t single) all() []Node { return []Node{nodeOf(t.client)} }

func (t single) pick(context.Context, string) (*redis.Client, error) { return t.client, nil }

// ring is the topology of a Ring, which hashes names over its shards that are up. That takes a read
// lock and no I/O.
type ring struct{ client *redis.Ring }

func (t ring) node(bucket string) Node {
	client, err := t.client.GetShardClientForKey(bucket)
	if err != nil {
		return "" // no shard is up, or the Ring is closed
	}
	return nodeOf(client)
}

func (t ring) all() (nodes []Node) {
	for _, client := range t.client.GetShardClients() {
		nodes = append(nodes, nodeOf(client))
	}
	return nodes
}

func (t ring) pick(_ context.Context, bucket string) (*redis.Client, error) {
	return t.client.GetShardClientForKey(bucket)
}
