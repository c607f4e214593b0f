package remote

import "strconv"

// Algorithm is how a bucket counts: which script decides, and which model in [Memory].
type Algorithm uint8

// The algorithms; docs/algorithms.md compares them.
const (
	TokenBucket   Algorithm = iota // Cap, refilled by Tokens per Period; leased
	SlidingLog                     // at most Cap in any Period, to the microsecond; direct takes only
	FixedWindow                    // at most Cap in each window of Period, which begin at Phase; leased
	SlidingWindow                  // at most Cap in the last Span blocks of Period, for each of its limits; leased
	TokenBuckets                   // several token buckets, each token debited from all: Cap, Tokens and Period of each; leased
)

// algorithms is what each of them is, in Go and in Redis. lua/token_bucket.lua has arguments and a reply of its own: broken
// and third are for the scripts that begin with lua/call.lua.
var algorithms = [...]struct {
	mark   string  // of the format of what is stored
	script *script // that decides
	sorted bool    // it is stored in a sorted set, the others in a hash
	fresh  func() memoryState

	broken func(c *Call) int            // the first argument against a rule of its own, or 0
	third  func(l Limit, c *Call) int64 // the third number of a limit
}{
	TokenBucket: {mark: Format, script: &tokenBucket, fresh: func() memoryState { return new(memoryBucket) }},
	SlidingLog: {
		mark: "lg1", script: &slidingLog, sorted: true, fresh: func() memoryState { return new(memoryLog) },
		broken: brokenLogArgument, third: func(Limit, *Call) int64 { return 0 },
	},
	FixedWindow: {
		mark: "fw1", script: &fixedWindow, fresh: func() memoryState { return new(memoryWindow) },
		broken: brokenFixedArgument, third: func(_ Limit, c *Call) int64 { return c.Phase },
	},
	SlidingWindow: {
		mark: "sw2", script: &slidingWindow, fresh: func() memoryState { return new(memoryBlocks) },
		broken: brokenBlocksArgument, third: func(l Limit, _ *Call) int64 { return l.Span },
	},
	TokenBuckets: {
		mark: "tm1", script: &tokenBuckets, fresh: func() memoryState { return new(memoryBuckets) },
		broken: brokenBucketsArgument, third: func(l Limit, _ *Call) int64 { return l.Tokens },
	},
}

// Kind is what the stored numbers of a bucket depend on besides its key, and so a part of its name: two versions of a
// policy in one deploy would else forget each other's counts. The zero value is the token bucket.
type Kind struct {
	Algorithm Algorithm
	Window    int64 // µs, of a SlidingLog and a FixedWindow; else 0
	Calendar  bool  // of a FixedWindow: its Phase is 0 for every key

	Shards, Shard int // of a key that is split into several buckets: how many, ≥ 2, and which, from 0; else 0 and 0
}

// mark ends the names of the kind's buckets.
func (k Kind) mark() string {
	mark := algorithms[k.Algorithm].mark
	if k.Window > 0 {
		mark += ":" + strconv.FormatInt(k.Window, 10)
	}
	if k.Calendar {
		mark += ":0"
	}
	if k.Shards > 0 {
		mark += shardMark
	}
	return mark
}
