// Package lua holds the scripts that Redis runs, and the lease protocol that they speak: a [Call]
// and a [Reply], their codes, flags and limits, and how they are written and read. Code that
// composes, sends or judges calls uses these types. The package promises no compatibility: it
// follows the scripts.
//
// A script works on one key, in one atomic step, by Redis' own clock (TIME). Its header states
// KEYS, ARGV, reply and errors. Numbers are whole, 0 ≤ x < 2⁵³, times in microseconds. An error
// writes nothing and repeats no text of the caller.
//
// One call of an [Algorithm.Script] leases tokens to a process, or takes some directly, and settles
// what the process did since its last call. It states absolute facts (what it holds, which reply it
// last accepted, what it gives back), so that lost, repeated, reordered and late messages do no
// harm. At every moment level + escrow ≤ cap; hence any interval of length t admits at most cap +
// rate·t, whatever the number of processes. A denied direct take and a peek (want 0 without a lease
// id) write nothing; every other call sets a time to live long enough that an expired bucket would
// have been full and free of leases.
//
// All these scripts begin with call.lua: arguments, rules, clock and errors. It is followed by
// lease.lua, which has the lease protocol and places for the parts in which the algorithms differ:
// how they count. TokenBucket and FixedWindow have a short way for the most frequent call, which
// comes first.
//
// One call of [Presence] says "this process is here, and has these policies", and counts the
// processes that said so within the last ttl. One call of [Standing] says "this process uses so
// many units of [Pool]", and asks for an equal part of it: a [Poll] and a [PollReply]. At every
// moment all processes together use at most Pool. A process that is silent for a ttl has lost its
// right, by its own clock first.
//
// One call of [AtOnce] says "this process has so many places of these keys", and asks for more:
// [Claims]. It is the one script that takes several keys. They do not change each other, so they
// share a call only to make it cheap.
//
// The scripts run on Redis ≥ 6.2 and Valkey ≥ 8.0, on the primary, and need no flags.
// [Script.Commands] are the commands that they run on the key passed.
package lua

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by SHA-1; nothing here relies on its strength.
	_ "embed"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
)

// The texts.
var (
	//go:embed token_bucket_short.lua
	tokenBucketShortText string
	//go:embed token_bucket.lua
	tokenBucketText string
	//go:embed call.lua
	callText string
	//go:embed lease.lua
	leaseText string
	//go:embed sliding_log.lua
	slidingLogText string
	//go:embed fixed_window_short.lua
	fixedWindowShortText string
	//go:embed fixed_window.lua
	fixedWindowText string
	//go:embed sliding_window.lua
	slidingWindowText string
	//go:embed token_buckets.lua
	tokenBucketsText string
	//go:embed presence.lua
	presenceText string
	//go:embed standing.lua
	standingText string
	//go:embed at_once.lua
	atOnceText string
)

// Script is the text of a script and the name by which EVALSHA knows it.
type Script struct {
	Source string
	SHA    string // SHA-1 of Source, 40 hex digits
}

func newScript(source string) *Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	return &Script{Source: source, SHA: hex.EncodeToString(sum[:])}
}

var callOfCommand = regexp.MustCompile(`call\('([A-Z]+)'`)

// Commands are the commands of Redis that the script runs, in lower case, each once and sorted. A
// caller needs the right to each.
func (s *Script) Commands() []string {
	var all []string
	for _, m := range callOfCommand.FindAllStringSubmatch(s.Source, -1) {
		all = append(all, strings.ToLower(m[1]))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Presence is the script that counts processes. It never changes while a program runs.
var Presence = newScript(presenceText)

// Standing is the script that lends the fractions of the standing shares. It never changes while a
// program runs.
var Standing = newScript(standingText)

// AtOnce is the script that grants places of keys: how many requests run at the same time. It never
// changes while a program runs.
var AtOnce = newScript(atOnceText)
