package sim

import (
	"math/rand/v2"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// engine is Redis and the network to it. The schedule reduces the faults of a scenario to these methods, and calls all
// of them from one goroutine.
//
// A process lives in a slot of the fleet. The network belongs to the slot: a process that is replaced while it is cut
// off has a successor that is cut off too.
type engine interface {
	// start starts a process.
	start(p *process) (instance, error)

	// connect sets what is wrong with the network of a slot.
	connect(slot int, c conditions)
	// serve sets what is wrong with Redis. When it goes down all connections are cut.
	serve(s redisState)

	flush()                            // deletes every bucket and the presence set
	flushScripts()                     // deletes the scripts
	evict(keys int, random *rand.Rand) // deletes so many buckets, at random
	step(by time.Duration)             // sets the clock of Redis
	remember()                         // a replica takes over all that is written, and follows no more
	promote()                          // the replica becomes the master; an empty one if there was none

	// close ends everything. All faults were lifted before, and all processes ended.
	close() error
}

// conditions are the faults of a network. The zero value is a healthy one.
type conditions struct {
	holdOut, holdIn bool // requests, or replies, are held back
	// 0 … 1: the part of the requests, and of the replies, that are lost with their connections
	cut, lose     float64
	delay, jitter time.Duration // added to a round trip; jitter is the mean of an exponential distribution
}

// plus combines two faults.
func (c conditions) plus(d conditions) conditions {
	return conditions{
		holdOut: c.holdOut || d.holdOut, holdIn: c.holdIn || d.holdIn,
		cut: either(c.cut, d.cut), lose: either(c.lose, d.lose),
		delay: c.delay + d.delay, jitter: c.jitter + d.jitter,
	}
}

// either returns the probability that at least one of two independent events happens.
func either(p, q float64) float64 { return p + q - p*q }

// redisState is what is wrong with Redis. The zero value is a healthy one.
type redisState struct {
	down   bool   // connections are refused
	frozen bool   // requests wait, and are executed when it goes on
	refuse string // the error that it answers instead of executing a script; empty: it executes
}

// listener is the run, as an engine in virtual time needs it. It hears what only the engine sees. Its methods may be
// called concurrently.
type listener interface {
	// newSimulatedProcess starts a process whose store open returns.
	newSimulatedProcess(p *process, open func(number, slot int) (remote.Store, error)) (instance, error)
	answered(process int, code lua.Code, grant int64) // an executed call; its process may never hear of it
	happened(name string)                             // one of scenario.Happenings

	// execute runs a call with do, under the eyes of the audit.
	execute(on hashReader, process int, c *lua.Call, do func() (lua.Reply, bool))
}

// refusals are the texts of errors by the word of a scenario. Another word is the text itself.
var refusals = map[string]string{
	"LOADING":     "LOADING Redis is loading the dataset in memory",
	"READONLY":    "READONLY You can't write against a read only replica.",
	"MASTERDOWN":  "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
	"NOREPLICAS":  "NOREPLICAS Not enough good replicas to write.",
	"MISCONF":     "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"OOM":         "OOM command not allowed when used memory > 'maxmemory'.",
	"BUSY":        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOAUTH":      "NOAUTH Authentication required.",
	"WRONGPASS":   "WRONGPASS invalid username-password pair or user is disabled.",
	"NOPERM":      "NOPERM this user has no permissions to run the 'evalsha' command",
	"WRONGTYPE":   "WRONGTYPE Operation against a key holding the wrong kind of value",
}

// refusal returns the text of an error that Redis sends.
func refusal(word string) string {
	if text, ok := refusals[word]; ok {
		return text
	}
	return word
}
