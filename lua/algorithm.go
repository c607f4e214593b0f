package lua

// Algorithm selects how a bucket counts, and so the script that decides.
type Algorithm uint8

// The algorithms; docs/choosing.md compares them.
const (
	TokenBucket   Algorithm = iota // Cap, refilled by Tokens per Period; leased
	SlidingLog                     // at most Cap in any Period, to the microsecond; direct takes only
	FixedWindow                    // at most Cap in each window of Period, which begin at Phase; leased
	SlidingWindow                  // at most Cap in the last Span blocks of Period, for each of its limits; leased
	TokenBuckets                   // several token buckets, each token debited from all: Cap, Tokens and Period of each; leased
)

// Algorithms is the number of algorithms.
const Algorithms = len(algorithms)

// algorithms describes each of them.
var algorithms = [...]struct {
	mark   string // of the format of what is stored
	script *Script
	sorted bool // stored in a sorted set; the others are hashes
	single bool // has one limit; the others have several

	broken func(c *Call) int            // the first argument against a rule of its own, or 0
	third  func(l Limit, c *Call) int64 // the third number of a limit
}{
	TokenBucket: {
		mark: "tb2", script: newScript(TokenBucket.text()), single: true,
		broken: brokenBucket, third: func(l Limit, _ *Call) int64 { return l.Tokens },
	},
	SlidingLog: {
		mark: "lg1", script: newScript(SlidingLog.text()), sorted: true, single: true,
		broken: brokenLog, third: func(Limit, *Call) int64 { return 0 },
	},
	FixedWindow: {
		mark: "fw2", script: newScript(FixedWindow.text()), single: true,
		broken: brokenFixed, third: func(_ Limit, c *Call) int64 { return c.Phase },
	},
	SlidingWindow: {
		mark: "sw3", script: newScript(SlidingWindow.text()),
		broken: brokenBlocks, third: func(l Limit, _ *Call) int64 { return l.Span },
	},
	TokenBuckets: {
		mark: "tm2", script: newScript(TokenBuckets.text()),
		broken: brokenBuckets, third: func(l Limit, _ *Call) int64 { return l.Tokens },
	},
}

// text is the text of the script, put together from the files. The short ways come first.
func (a Algorithm) text() string {
	switch a {
	case SlidingLog:
		return assemble(callText+place+"load\n", slidingLogText)
	case FixedWindow:
		return fixedWindowShortText + assemble(callText+leaseText, fixedWindowText)
	case SlidingWindow:
		return assemble(callText+leaseText, slidingWindowText)
	case TokenBuckets:
		return assemble(callText+leaseText, tokenBucketsText)
	default:
		return tokenBucketShortText + assemble(callText+leaseText, tokenBucketText)
	}
}

// Script is the script that decides.
func (a Algorithm) Script() *Script { return algorithms[a].script }

// Mark names the format of what is stored. It ends the name of the key, and is the field v of a hash.
func (a Algorithm) Mark() string { return algorithms[a].mark }

// Sorted reports whether a bucket is a sorted set. The others are hashes.
func (a Algorithm) Sorted() bool { return algorithms[a].sorted }

// Window reports whether tokens come back when they are old enough. Those of a bucket come back at a rate.
func (a Algorithm) Window() bool { return a == FixedWindow || a == SlidingWindow || a == SlidingLog }
