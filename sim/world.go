package sim

import (
	"math/rand/v2"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// world is Redis and the network to it: what an engine is, besides the driver. The driver reduces the faults of a scenario to
// the few things that a world can do; it calls all of its methods from one goroutine.
//
// A process lives in a slot of the fleet. The network belongs to the slot: a process that is replaced while it is cut off
// has a successor that is cut off too.
type world interface {
	// start starts a process.
	start(p *process) (body, error)

	// connect says what is wrong with the network of a slot, from now on.
	connect(slot int, c conditions)
	// serve says what is wrong with Redis, from now on. When it goes down all connections are cut.
	serve(s service)

	flush()                            // every bucket is forgotten, and who is here
	flushScripts()                     // the scripts are
	evict(keys int, random *rand.Rand) // so many buckets are, at random
	step(by time.Duration)             // the clock of Redis jumps
	remember()                         // a replica has all that is written by now, and from now on gets nothing more
	promote()                          // that replica takes over; an empty one, if there was none

	// close ends everything. All faults were lifted before, and all processes ended.
	close() error
}

// conditions are what is wrong with a network. The zero value is nothing.
type conditions struct {
	holdOut, holdIn bool          // what is sent arrives nowhere, or what is answered
	cut, lose       float64       // 0 … 1: the part of the requests that are lost with their connection, and of the replies
	delay, jitter   time.Duration // of a round trip, in addition; the jitter is the mean of an exponential distribution
}

// and adds up what two faults do.
func (c conditions) and(d conditions) conditions {
	return conditions{
		holdOut: c.holdOut || d.holdOut, holdIn: c.holdIn || d.holdIn,
		cut: either(c.cut, d.cut), lose: either(c.lose, d.lose),
		delay: c.delay + d.delay, jitter: c.jitter + d.jitter,
	}
}

// either is the probability of one of two independent events at least.
func either(p, q float64) float64 { return p + q - p*q }

// service is what is wrong with Redis. The zero value is nothing.
type service struct {
	down   bool   // connections are refused
	frozen bool   // requests wait, and are executed when it goes on
	refuse string // what it answers instead of executing a script; empty: it executes
}

// listener is the run, as a world in the bubble needs it: it is told what only the world sees. Its methods may be called concurrently.
type listener interface {
	newInside(p *process, open func(number, slot int) (remote.Store, error)) (body, error) // a process in the bubble
	answered(process int, code lua.Code, grant int64)                                      // a call, of a process that may never hear of it
	happened(name string)                                                                  // one of scenario.Happenings

	// execute has a call executed, by do, while the auditor looks on.
	execute(on shelf, process int, c *lua.Call, do func() (lua.Reply, bool))
}

// refusals are what Redis says for a word of a scenario; other words it says as they are.
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

// refusal is the text of an error that Redis sends.
func refusal(word string) string {
	if text, ok := refusals[word]; ok {
		return text
	}
	return word
}
