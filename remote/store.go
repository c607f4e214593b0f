package remote

import (
	"context"
	"errors"
	"time"
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
	// dialling (both bounded by ctx), and up to timeout each for writing and reading. A call whose Result has an
	// error that is not a *[ScriptError] may or may not have been executed.
	Run(ctx context.Context, timeout time.Duration, calls []Call, results []Result)

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

// Limit is one limit of several on a bucket; see [Call].
type Limit struct {
	Cap, Tokens, Period, Span int64
}

// Call is one call of an algorithm's script: see package lua for the contracts. Amounts are tokens, 0 … 2⁴⁰ for Cap
// and costs; times are µs of the node's clock. What an algorithm has no use for is 0.
type Call struct {
	Bucket    string // from Store.Name, for the same algorithm
	Algorithm Algorithm

	Cap    int64   // the most at once, 1 … 2⁴⁰: a burst, or what a window holds
	Tokens int64   // refilled per Period, of a TokenBucket
	Period int64   // µs, ≥ 1: of the refill, or the length of a window
	Phase  int64   // of a FixedWindow: its windows begin at Phase + k·Period of the node's clock; 0 … Period−1
	Span   int64   // of a SlidingWindow: how many blocks of Period count, 1 … 512
	Also   []Limit // further limits; at most seven, and never changed once a call was made with them

	Want int64 // tokens asked for; 0 settles only, and is a peek without Lease
	Min  int64 // grant no fewer; ≤ Want
	TTL  int64 // µs a lease lasts, 1 … 2⁵⁰

	Lease    string // id of the process; "" takes directly, and then Hold, Ret, Refund and Debt are 0
	Seq      int64  // higher with every call of a Lease
	Ack      int64  // highest Seq whose reply was accepted
	Hold     int64  // unspent tokens kept, 0 … 2⁴⁰
	Ret      int64  // leased tokens given back; needs Hold = 0
	Refund   int64  // tokens admitted, then not used; needs a Deadline ≤ the node's now + TTL
	Debt     int64  // tokens admitted without the bucket
	Owed     int64  // the part of Debt charged in any case
	Seen     int64  // overflow when Debt was last 0
	Fleet    int64  // processes that share the bucket, ≥ 1
	Deadline int64  // from this time on the node does nothing; 0 none
	Epoch    int64  // as last seen; 0 unknown

	At    int64 // stamp of the take that Refund or To is for
	To    int64 // the cost that this take gets, of a SlidingLog; of a SlidingWindow, 1: what a Lease's call is granted is not leased
	Since int64 // when Debt was admitted; of windows, and not 0 there if Debt is not
	Reset int64 // forget what was counted by then; of windows, needs a Lease

	Now int64 // 0 reads the node's clock; anything else is for tests and simulation
}

// Reply is the script's answer to a [Call].
type Reply struct {
	Code     Code
	Grant    int64 // tokens granted
	Level    int64 // whole tokens left in the bucket; negative is debt
	Retry    int64 // µs until Min tokens may be there; -1 never
	Active   int64 // leases that hold or want tokens
	TTLLeft  int64 // µs the lease lasts from its execution on
	Now      int64 // the node's clock, µs since 1970
	Epoch    int64 // when the bucket was created, µs; 0 there is none
	Flags    Flags
	Overflow int64 // tokens that the refill ever lost because the bucket was full

	// What follows is 0 of a TokenBucket with one limit.
	Which int64 // the limit, from 1, that makes a refused caller wait longest, else the tightest
	Reset int64 // µs until nothing counts any more, or longer
	Stamp int64 // when this call was counted, on the bucket's own clock: for Call.At
}

// Result is a Reply or the error that stands in its place.
type Result struct {
	Reply     Reply
	Err       error
	Elsewhere bool // another node than [Store].Node's was asked too, for the slot is moving: Reply.Now is by that one's clock
}

// Code says what a call came to.
type Code int64

// The codes. Only Granted, Denied and Replay accept what the call stated; after Stale, Never and Late nothing changed.
const (
	Granted Code = 0
	Denied  Code = 1
	Replay  Code = 2 // this Seq was executed before; the same grant again
	Stale   Code = 3 // a newer Seq was executed, or the record is over: ignore
	Never   Code = 4 // Min > Cap
	Late    Code = 5 // Deadline ≤ now: nothing was done
)

// Flags are what else a call found.
type Flags int64

// The flags, added up.
const (
	Created     Flags = 1  // there was no bucket
	SteppedBack Flags = 2  // a step back of the node's clock was believed
	Adopted     Flags = 4  // the caller held more than was recorded
	OtherEpoch  Flags = 8  // the bucket is not the one of Call.Epoch
	Unrecorded  Flags = 16 // the reply of Call.Ack is not on record: lost, over, or the caller began anew
	Unapplied   Flags = 32 // Refund, Reset or To was asked for and not carried out: see the scripts' headers
)

// MaxBack is the longest step back of a node's clock that a bucket waits out; a longer one is believed at once, without
// credit. One second is above what NTP slews and below what an operator would notice as a limiter standing still.
const MaxBack = time.Second

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
