package lua

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Algorithm selects how a bucket counts, and so the script that decides. What is true of one
// algorithm and not of all is in its row of [algorithms]. Code that depends on it asks for a
// [Property], and not which algorithm it is.
type Algorithm uint8

// The algorithms; docs/choosing.md compares them.
const (
	TokenBucket   Algorithm = iota // Cap, refilled by Tokens per Period
	FixedWindow                    // at most Cap in each window of Period: see [Call].Phase
	SlidingLog                     // at most Cap in any Period, to the microsecond
	SlidingWindow                  // at most Cap in the last Span blocks of Period, for each of its limits
	TokenBuckets                   // several token buckets, each token debited from all: Cap, Tokens and Period of each
)

// Property is something that is true of some algorithms.
type Property uint16

// The properties.
const (
	// OneLevel says that a bucket is one level that refills at one rate. A process that knows both
	// knows when the bucket has how many tokens. For any other bucket Redis says so.
	OneLevel Property = 1 << iota

	// Window says that tokens count for some time after they were used, and then no more. There is
	// no burst beside the limit, and tokens are given back only where they count. Without it tokens
	// come at a rate.
	Window

	// Owes says that a level can be below zero, as far as MaxDebt.
	Owes

	// Several says that the script counts by several limits: see [Algorithm.BySeveral].
	Several

	// Edges says that the tokens of a Window come back all at once, when it ends.
	Edges

	// Phased says that windows with Edges begin at Phase + k·Period of the node's clock.
	Phased

	// Blocks says that a Window counts by blocks. A limit has Span blocks of Period, one more than
	// its time has.
	Blocks

	// Entries says that a bucket is a sorted set with an entry for each take, whose cost a later
	// call can set. The others are hashes.
	Entries

	// Leased says that the script lends, by lease.lua. Without it each call takes directly, or
	// settles.
	Leased

	// NamesPer says that the Period is in the name of a bucket, or of a limit in it. So another
	// Period counts anew.
	NamesPer
)

// Algorithms is the number of algorithms.
const Algorithms = len(algorithms)

// algorithms has the row of each. Two more places know each of them: internal/model has its script
// in Go, and lua.go the text of the script. TestEveryAlgorithm says what else has to name it.
var algorithms = [...]struct {
	name  string // in words
	mark  string // of the format of what is stored
	has   Property
	short *string // the short way of the script, nil if it has none
	parts *string // of the script, for the places of call.lua and lease.lua

	several Algorithm                    // counts by several limits of this algorithm; 0 for itself
	broken  func(c *Call) int            // the first argument against a rule of its own, or 0; nil if it has none
	third   func(l Limit, c *Call) int64 // the third number of a limit
}{
	TokenBucket: {
		name: "token bucket", mark: "tb2", has: OneLevel | Owes | Leased, several: TokenBuckets,
		short: &tokenBucketShortText, parts: &tokenBucketText,
		broken: brokenBucket, third: func(l Limit, _ *Call) int64 { return l.Tokens },
	},
	FixedWindow: {
		name: "fixed window", mark: "fw2", has: Window | Edges | Phased | Leased | NamesPer,
		short: &fixedWindowShortText, parts: &fixedWindowText,
		third: func(_ Limit, c *Call) int64 { return c.Phase },
	},
	SlidingLog: {
		name: "sliding log", mark: "lg1", has: Window | Entries | NamesPer, parts: &slidingLogText,
		broken: brokenLog, third: func(Limit, *Call) int64 { return 0 },
	},
	SlidingWindow: {
		name: "sliding window", mark: "sw3", has: Window | Several | Blocks | Leased,
		parts: &slidingWindowText, broken: brokenBlocks, third: func(l Limit, _ *Call) int64 { return l.Span },
	},
	TokenBuckets: {
		name: "token buckets", mark: "tm2", has: Owes | Several | Leased | NamesPer,
		parts: &tokenBucketsText, broken: brokenBuckets, third: func(l Limit, _ *Call) int64 { return l.Tokens },
	},
}

// properties are those of the rows, by any Algorithm that there can be: decisions ask for them.
var properties = func() (all [1 << 8]Property) {
	for a := range algorithms {
		all[a] = algorithms[a].has
	}
	return all
}()

// Has reports whether a has a property.
func (a Algorithm) Has(p Property) bool { return properties[a]&p != 0 }

// String returns the name in words, as in "token bucket".
func (a Algorithm) String() string {
	if int(a) < Algorithms {
		return algorithms[a].name
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// BySeveral returns the algorithm that counts by several limits of a, which may be another one. If
// that is not [Several], a has one limit.
func (a Algorithm) BySeveral() Algorithm {
	if int(a) < Algorithms && algorithms[a].several != 0 {
		return algorithms[a].several
	}
	return a
}

// Choices are the algorithms that a policy can name. The others count by several limits of one of
// these.
func Choices() (all []Algorithm) {
	for a := range Algorithm(Algorithms) {
		if !slices.ContainsFunc(all, func(b Algorithm) bool { return b.BySeveral() == a }) {
			all = append(all, a)
		}
	}
	return all
}

// Parse returns the choice with a name, in which a hyphen may stand for the space. The error says
// what the names are.
func Parse(name string) (Algorithm, error) {
	names := make([]string, 0, Algorithms)
	for _, a := range Choices() {
		if name == a.String() || name == strings.ReplaceAll(a.String(), " ", "-") {
			return a, nil
		}
		names = append(names, a.String())
	}
	return 0, errors.New("must be one of " + strings.Join(names, ", "))
}

// scripts are put together when the program starts.
var scripts = func() (all [Algorithms]*Script) {
	for a := range all {
		all[a] = newScript(Algorithm(a).text())
	}
	return all
}()

// text is the text of the script, put together from the files. The short way comes first.
func (a Algorithm) text() (text string) {
	row, template := &algorithms[a], callText+place+"load\n"
	if row.has&Leased != 0 {
		template = callText + leaseText
	}
	if row.short != nil {
		text = *row.short
	}
	return text + assemble(template, *row.parts)
}

// Script is the script that decides.
func (a Algorithm) Script() *Script { return scripts[a] }

// Mark names the format of what is stored. It ends the name of the key, and is the field v of a
// hash.
func (a Algorithm) Mark() string { return algorithms[a].mark }
