package remote

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Store is the shared tier: where the buckets live and the script's semantics hold. [Redis] and [Memory] are the only
// implementations; the interface is sealed, so that the lease protocol can grow without breaking anybody. Embed one of
// them to observe or disturb it. All methods may be called concurrently.
type Store interface {
	// Name reports the store's name for the bucket of a user's key under a policy. No two share a name, but for those of a
	// long key and its [Digest]; and a name never changes: see [RedisOptions] for prefix and hashing.
	Name(k Kind, policy, key string) string

	// Key is Name for a token bucket.
	Key(policy, key string) string

	// Node reports which node answers for a bucket, or "" while that is unknown. It does no I/O: it may run on a
	// caller's goroutine. The answer may change when the nodes share out their keys anew.
	Node(bucket string) Node

	// Nodes reports the nodes that buckets may be on: what Node can answer, as far as is known, each once and in no order. It does
	// no I/O, but may take a millisecond: it is not for a caller's goroutine. Of a Cluster a node may be missing that
	// has no sixteen slots side by side.
	Nodes() []Node

	// Locate reports which node answers for a bucket and, unlike Node, finds out if that is unknown: it may block, on Redis,
	// within ctx and the client's own timeouts. On a Cluster one answer teaches Node all buckets.
	Locate(ctx context.Context, bucket string) (Node, error)

	// Run executes calls, each at most once, in as few round trips as there are nodes concerned, and writes the result
	// of calls[i] to results[i] (len(results) ≥ len(calls)). It blocks: on Redis for the wait for a connection and for
	// dialing (both bounded by ctx), and up to timeout each for writing and reading. A call whose Result has an
	// error that is not a *[ScriptError] may or may not have been executed.
	Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []Result)

	// Presence says that process id is here and counts the processes of this node that said so within the last ttl
	// (≥ 1 µs; 0 leaves). It reports the node's clock too. One round trip, bounded like Run.
	Presence(ctx context.Context, timeout time.Duration, node Node, id string, ttl time.Duration) (Census, error)

	// Close releases what the store opened itself; a borrowed client stays open. Later calls fail.
	Close() error

	// check reports why the store cannot be used (a nil client, a nil pointer), or nil.
	check() error
}

// Check reports why a store cannot be used: it is nil, a nil pointer, or was built over a nil client.
func Check(s Store) error {
	if s == nil {
		return errors.New("remote: the store is nil: use remote.Open, remote.NewRedis or remote.NewMemory")
	}
	return s.check()
}

// Node names the server that answers for a bucket: what fails together. Comparable; "" means not known yet.
type Node string

// Census is the answer to [Store].Presence.
type Census struct {
	Processes int64 // here within the last ttl, this one included
	Now       int64 // the node's clock, µs since 1970
}

// Result is a Reply or the error that stands in its place.
type Result struct {
	Reply     lua.Reply
	Err       error
	Elsewhere bool // another node than [Store].Node's was asked too, for the slot is moving: Reply.Now is by that one's clock
}

// ScriptError is a refusal by the script or by Redis' own type check: the bucket is not ours, is damaged, or the call
// breaks a rule. Nothing was executed, the node is well, and only this bucket is concerned.
type ScriptError struct {
	Text string // as Redis sent it; it never contains a user's key
}

func (e *ScriptError) Error() string { return "remote: " + e.Text }

// OneBucket reports true: the node is well, and a breaker should count a success.
func (e *ScriptError) OneBucket() bool { return true }

// ErrClosed is the error of every call after Close.
var ErrClosed = errors.New("remote: the store is closed")
