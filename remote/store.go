package remote

import (
	"context"
	"errors"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
)

// Store is the shared tier: it holds the buckets and executes the scripts. [Redis] and [Memory] are
// the only implementations. The interface is sealed, so that the lease protocol can grow without
// breaking callers. Embed one of them to observe or disturb it. All methods may be called
// concurrently.
type Store interface {
	// Name returns the store's name for the bucket of a user's key under a policy. No two buckets
	// share a name, except that a long key and its [Digest] have the same one. A name never
	// changes; see [RedisOptions] for prefix and hashing.
	Name(k Kind, policy, key string) string

	// Key is Name for a token bucket.
	Key(policy, key string) string

	// Node returns the node that answers for a bucket, or "" while that is unknown. It does no I/O
	// and may run on a caller's goroutine. The answer may change when keys move between nodes.
	Node(bucket string) Node

	// TableNode returns the node that has the table of standing shares, or "" while that is
	// unknown. It does no I/O.
	TableNode() Node

	// Nodes returns the nodes that Node may return, as far as they are known, each once and in no
	// order. It does no I/O, but may take a millisecond, so it must not run on a caller's
	// goroutine. A node of a Cluster may be missing if it has no range of 16 slots.
	Nodes() []Node

	// Locate returns the node that answers for a bucket. Unlike Node, it asks Redis if that is
	// unknown. It may block until ctx or the client's own timeouts end it. On a Cluster one answer
	// teaches Node all buckets.
	Locate(ctx context.Context, bucket string) (Node, error)

	// Run executes calls, each at most once, in as few round trips as nodes are concerned. It
	// writes the result of calls[i] to results[i]; len(results) must be at least len(calls). It
	// blocks while it waits for a connection and dials (bounded by ctx), and for up to timeout each
	// for writing and reading. A call whose Result has an error that is not a *[ScriptError] may or
	// may not have been executed.
	Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []Result)

	// PlacesName returns the name of what counts the places of a user's key under a policy: who
	// runs how many requests of it at the same time. It is like Name.
	PlacesName(policy, key string) string

	// Claim executes claims of places, each at most once, and writes the result of c.Each[i] to
	// results[i]. It takes one round trip, bounded like Run. Claims of one server go in one
	// command, and on a Cluster those of one slot.
	Claim(ctx context.Context, timeout time.Duration, c *lua.Claims, results []ClaimResult)

	// Presence records that a process is present, or that it leaves, and counts the processes of
	// this node that were here within the last p.TTL: all, and those of each policy that p
	// announces. It also returns the node's clock. It takes one round trip, bounded like Run. On
	// the node of the table it also executes p.Poll, in the same round trip. Census.Poll counts
	// whatever the error of the presence is, and the other way round.
	Presence(ctx context.Context, timeout time.Duration, node Node, p Process) (Census, error)

	// Inspect reports what a node will refuse although it answers: the scripts of some algorithms,
	// for want of a right, or keys of other nodes, if it is a node of a Cluster behind a client for
	// one server. It uses keys of its own, which it leaves empty, and takes one round trip, bounded
	// like Run. It returns nil if it found nothing, also because the node is unknown.
	Inspect(ctx context.Context, timeout time.Duration, node Node, algorithms []lua.Algorithm) error

	// Server returns what a node says that it is, as in "redis 7.0.15", and "" if it is unknown. It
	// takes one round trip, bounded like Run.
	Server(ctx context.Context, timeout time.Duration, node Node) (string, error)

	// Dial opens a connection to a node, as the client does, and closes it. The error says why that
	// fails: a refused connection, a name that nobody knows, a certificate, or [ErrNoTLS]. It is
	// for finding the cause of a call without an answer: go-redis repeats a dial until the call's
	// time is over, and the error is then a timeout. It returns nil if the node is unknown, or if
	// the client is not one of go-redis' own. It blocks until ctx ends at most.
	Dial(ctx context.Context, node Node) error

	// Close releases what the store opened itself. A borrowed client stays open. Later calls fail.
	Close() error

	// check reports why the store cannot be used (a nil client, a nil pointer), or nil.
	check() error
}

// Check reports why a store cannot be used: it is nil, a nil pointer, built over a nil client, or
// has an illegal prefix.
func Check(s Store) error {
	if s == nil {
		return errors.New("remote: the store is nil: must be made by remote.Open, remote.NewRedis or remote.NewMemory")
	}
	return s.check()
}

// Node names the server that answers for a bucket. Buckets of one node fail together. "" means not
// known yet.
type Node string

// Census is the answer to [Store].Presence.
type Census struct {
	Processes int64          // present within the last TTL, this one included
	Now       int64          // the node's clock, µs since 1970
	Silent    int64          // those of Processes that announce nothing
	Policies  []PolicyCensus // those that the process announces, in that order; nil if it announces none
	WasUsed   []lua.Used     // the parts of Policies that were in use in the last Process.Keep
	Poll      PollResult     // of Process.Poll
}

// PollResult is the reply to a poll, or the error that takes its place.
type PollResult struct {
	Sent  bool // the table is on the node, and the poll may have been executed
	Reply lua.PollReply
	Err   error // a *[ScriptError] if the script refused the poll; then nothing was executed
}

// PolicyCensus counts the processes of one policy.
type PolicyCensus struct {
	Processes     int64 // announce the policy, or nothing; this one included
	OtherServices int64 // of other services, and announce other limits of the policy
	OtherLimits   int64 // of the same service, and announce other limits of the policy
	SharedAlike   int64 // want the processes to share as much as this one does; 0 if that is nothing
	Used          int   // the most eighths of the limits by which any process uses shares
}

// Result is a reply, or the error that takes its place.
type Result struct {
	Reply lua.Reply
	Err   error

	// Elsewhere reports that another node than [Store].Node's was asked too, because the slot is
	// moving. Reply.Now is then by that node's clock.
	Elsewhere bool
}

// ClaimResult is the reply to a claim, or the error that takes its place.
type ClaimResult struct {
	Reply lua.ClaimReply
	Err   error
}

// ScriptError is a refusal by the script or by Redis' own type check: the bucket is not ours, is
// damaged, or the call breaks a rule. Nothing was executed. The node works, and only this bucket is
// concerned.
type ScriptError struct {
	Text string // as Redis sent it; it never contains a user's key
}

func (e *ScriptError) Error() string { return "remote: " + e.Text }

// OneBucket reports true: the node works, and a breaker should count a success.
func (e *ScriptError) OneBucket() bool { return true }

// ErrClosed is the error of every call after Close.
var ErrClosed = errors.New("remote: the store is closed")
