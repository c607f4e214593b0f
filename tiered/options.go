package tiered

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tiered-limiter/tiered-limiter/internal/defaults"
)

// Options are those of a Group. nil and zero fields mean the defaults.
type Options struct {
	// Budget is the longest that a decision waits for Redis: 1 ms … 1 min; 0 means 20 ms. It waits
	// only if this process holds too few tokens of the key, and less if the caller's context has a
	// deadline: see [Limiter.AllowN]. A process that has not heard of Redis yet needs five round
	// trips: see [Group.Ping].
	Budget time.Duration

	// Timeout is the least time after which a call to Redis has failed: Budget … 1 min. 0 means 50
	// ms, or Budget if that is more. Three such calls in a row are an outage. A Redis that answers
	// late is no outage: if it takes longer than half of Timeout, a call may take twice a round
	// trip, up to 1 s. A call that has failed may go on in the background, so that a new connection
	// that takes long is ready for the next call. It ends after four times Timeout or after 1 s,
	// whichever is shorter, but not before Timeout; and after 2 s if Redis is far, or has not
	// answered for a while.
	Timeout time.Duration

	// Processes is the least number of processes that share the limits: 0 … 2²⁰. FailLocal divides
	// the limit by it, or by the number of processes with a policy of the same name that Redis
	// counts, if that is more. 0 means 1: if a process starts while Redis is down, it then admits
	// the whole limit.
	Processes int

	// Service is the name of the service that this process is part of: up to 64 bytes of printable
	// text, of which Redis stores a fingerprint. "" means the name of the program. If two services
	// on one Redis have a policy of one name with different limits, the Logger gets a WARN, because
	// they count each other's requests. If processes of one service have different limits, as
	// during a deploy, it gets an INFO. Stats counts the processes of both kinds.
	Service string

	MaxKeys     int // in the process, of all policies; more remove the least recently used: 1 … 2³⁰; 0 means 100 000
	MaxInFlight int // calls to each node, but failed ones; more wait up to Budget: 1 … 65 536; 0 means 64

	Random func() float64 // in [0, 1), for every jitter, called concurrently; nil means math/rand/v2. A seeded one repeats
	Trace  *Trace         // receives what happens, event by event; nil means no hooks

	// Logger receives state changes, one line each, which docs/runbook.md lists, and nothing per
	// request. It is called on a goroutine of the Group, and must not close the Group. nil means
	// slog.Default() at the time of NewGroup; slog.New(slog.DiscardHandler) is silence.
	Logger *slog.Logger
}

// patience returns how long a call stays under way. After Timeout its callers already have their
// answer, and the breaker has counted a failure. A call that reaches Redis so late does nothing,
// because of its deadline, but its connection is kept.
//
// A new connection takes four round trips: one to dial, two for go-redis' handshake, one for the
// call. TLS adds one, and so does a script that Redis does not know. A client that hung up after 50
// ms each time would never get a connection to a Redis 15 ms away, and would stay in the fail mode
// for good. With 200 ms Redis may be 33 ms away. The clients of remote.Open read for as long. A
// node that is farther, or does not answer, gets more: up to 2 s.
func (o *Options) clientTimeout() time.Duration { return max(o.Timeout, min(4*o.Timeout, time.Second)) }

// fill validates o, reports all problems at once, and fills in the defaults.
func (o *Options) fill() (f Options, err error) {
	if o != nil {
		f = *o
	}
	if f.Random == nil {
		f.Random = rand.Float64
	}
	wrong := faults{of: "Options"}
	check := func(field string, value any, ok bool, rule string) {
		if !ok {
			wrong.bad(field, value, rule)
		}
	}
	within := func(d, lo, hi time.Duration) bool { return d == 0 || d >= lo && d <= hi }
	check("Budget", f.Budget, within(f.Budget, time.Millisecond, time.Minute), "must be 1ms to 1m, or 0 for 20ms")
	if f.Budget == 0 {
		f.Budget = defaults.Budget
	}
	check("Timeout", f.Timeout, within(f.Timeout, f.Budget, time.Minute), "must be Budget to 1m, or 0 for 50ms")
	if f.Timeout == 0 {
		f.Timeout = max(defaults.Timeout, f.Budget)
	}
	check("Processes", f.Processes, f.Processes >= 0 && f.Processes <= 1<<20, "must be 0 to 2^20")
	check("Service", fmt.Sprintf("%.80q", f.Service), validService(f.Service),
		"must be up to 64 bytes of printable text")
	if f.Service == "" {
		f.Service = programName()
	}
	check("MaxKeys", f.MaxKeys, f.MaxKeys >= 0 && f.MaxKeys <= 1<<30, "must be 1 to 2^30, or 0 for 100000")
	if f.MaxKeys == 0 {
		f.MaxKeys = defaults.MaxKeys
	}
	check("MaxInFlight", f.MaxInFlight, f.MaxInFlight >= 0 && f.MaxInFlight <= 1<<16, "must be 1 to 65536, or 0 for 64")
	if f.MaxInFlight == 0 {
		f.MaxInFlight = defaults.MaxInFlight
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	return f, wrong.err()
}

// maxService is the length of the longest service name, in bytes. It is that of a policy's name.
const maxService = 64

// validService reports whether a service may have this name.
func validService(name string) bool {
	return len(name) <= maxService && utf8.ValidString(name) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// programName returns the name of the running program. It names a service that has no other name.
func programName() string {
	if len(os.Args) == 0 { // a program can be started without its name
		return ""
	}
	return filepath.Base(os.Args[0])
}
