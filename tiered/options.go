package tiered

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Options are a Group's. A nil *Options, and each zero field, means the default.
type Options struct {
	// Budget is the longest that a decision waits for Redis: 1 ms … 1 min, 0 means 20 ms. It waits only for a key of
	// which this process holds too little.
	Budget time.Duration

	// Timeout is the longest that a call to Redis is waited for, Budget … 1 min; 0 means 50 ms, or Budget where that is
	// more. A call that takes longer has failed, whatever the client's own settings. It is left under way for four times as
	// long, a second at most, so that a connection that takes longer to make is there for the next.
	Timeout time.Duration

	// Processes is the least number of processes that share the limits, 0 … 2²⁰. The number is known from Redis; this
	// is the floor while it is not. It divides the limit when a process is alone.
	Processes int

	// MaxKeys bounds the keys kept in the process, of all policies together: 1 … 2³⁰, 0 means 100 000. The least
	// recently used gives its lease back and is forgotten.
	MaxKeys int

	// MaxInFlight bounds the calls under way to each Redis node: 1 … 65 536, 0 means 64. Those beyond wait, for no longer
	// than Budget. Those that failed by Timeout do not count.
	MaxInFlight int

	// Random is where every jitter comes from: numbers in [0, 1), called concurrently. Nil means math/rand/v2. Give it a
	// seed to make a simulation repeat exactly.
	Random func() float64

	// Trace is told what happens, event by event. Nil tells nobody.
	Trace *Trace

	// Logger receives state changes, one line each, and nothing per request: docs/operations.md lists the lines. It is
	// called on a goroutine of the Group. Nil logs nothing.
	Logger *slog.Logger
}

// Defaults of Options.
const (
	DefaultBudget      = 20 * time.Millisecond // a round trip is 0.2–2 ms: tenfold room, and no user notices
	DefaultTimeout     = 50 * time.Millisecond
	DefaultMaxKeys     = 100_000
	DefaultMaxInFlight = 64
)

// options are Options with the defaults filled in.
type options struct {
	Options
	uniform func() float64 // every random choice but the lease id and the seeds of hashes: see simulated
}

// patience is how long a call is left under way, though who waits for it is told after Timeout that nobody answers, and the
// breaker counts it as failed. What arrives so late does nothing, by its deadline; but the connection stays.
//
// A new connection takes four round trips (to dial, for what go-redis says first, twice, and for the call), five with TLS and one
// more for a script that Redis does not know. Who hangs up each time when it is not there after 50 ms never has one 15 ms away from
// Redis, and is alone for good. With 200 ms it may be 33 ms away; remote.Open's clients read for as long.
func (o *options) patience() time.Duration { return max(o.Timeout, min(4*o.Timeout, time.Second)) }

// fill validates o, all problems at once, and fills in the defaults.
func (o *Options) fill() (options, error) {
	f := options{uniform: rand.Float64}
	if o != nil {
		f.Options = *o
	}
	if f.Random != nil {
		f.uniform = f.Random
	}
	var all []error
	check := func(field string, value any, ok bool, rule string) {
		if !ok {
			all = append(all, fmt.Errorf("tiered: Options.%s is %v: %s", field, value, rule))
		}
	}
	within := func(d, lo, hi time.Duration) bool { return d == 0 || d >= lo && d <= hi }
	check("Budget", f.Budget, within(f.Budget, time.Millisecond, time.Minute), "must be 1ms to 1m, or 0 for 20ms")
	if f.Budget == 0 {
		f.Budget = DefaultBudget
	}
	check("Timeout", f.Timeout, within(f.Timeout, f.Budget, time.Minute), "must be Budget to 1m, or 0 for 50ms")
	if f.Timeout == 0 {
		f.Timeout = max(DefaultTimeout, f.Budget)
	}
	check("Processes", f.Processes, f.Processes >= 0 && f.Processes <= 1<<20, "must be 0 to 2^20")
	check("MaxKeys", f.MaxKeys, f.MaxKeys >= 0 && f.MaxKeys <= 1<<30, "must be 1 to 2^30, or 0 for 100000")
	if f.MaxKeys == 0 {
		f.MaxKeys = DefaultMaxKeys
	}
	check("MaxInFlight", f.MaxInFlight, f.MaxInFlight >= 0 && f.MaxInFlight <= 1<<16, "must be 1 to 65536, or 0 for 64")
	if f.MaxInFlight == 0 {
		f.MaxInFlight = DefaultMaxInFlight
	}
	if f.Logger == nil {
		f.Logger = slog.New(slog.DiscardHandler)
	}
	return f, errors.Join(all...)
}
