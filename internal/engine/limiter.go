package engine

import (
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Limiter decides by one policy. All methods may be called concurrently. A nil one refuses.
type Limiter struct {
	Group  *Group
	Number int          // of none other of the Group
	Name   string       // of the policy
	Kind   remote.Kind  // of its buckets
	Beside bool         // the policy had another Limiter, which may still be used: see leaseID
	Place  atomic.Int64 // of the policy among those that this process announces, -1 if it is removed

	mode     atomic.Uint32 // what is special about all its decisions: the bits below
	settings atomic.Pointer[Settings]
	lookUps  lookUps

	refreshes atomic.Int64 // calls of Refresh
	carries   atomic.Bool  // requests have carried limits

	Standing Standing
	Figures
}

// Figures are what a Limiter counts, without what its buckets count.
type Figures struct {
	mu      sync.Mutex
	evicted local.Stats    // of forgotten buckets, and by fail modes that were changed
	refused report.Evicted // what forgotten buckets refused

	rejected   int64 // calls that the store refused for their bucket alone
	forgiven   int64 // debt that was given up because Redis rejected the calls that reported it
	unanswered int64 // tokens asked for by calls without an answer

	Requests          report.Requests
	Waits             report.Waits
	Charged           atomic.Int64 // tokens charged to standing shares, or as a debt
	AdmittedUnlimited atomic.Int64 // tokens admitted without a limit
	Shadowed          atomic.Int64 // tokens that were refused, and yet admitted
	PerKeyFaults      atomic.Int64 // PerKey panicked or returned no limit, or a request carried an invalid one
	NearLimit         atomic.Int64 // see [local.Policy].NearLimit
	Paid              atomic.Int64 // see [local.Policy].Paid
	Refunded          atomic.Int64 // tokens of admitted requests that were given back: they are counted as spent no more
}

// Gone are the figures of forgotten buckets, and of calls that brought nothing.
type Gone struct {
	local.Stats
	Refused                        report.Top
	Rejected, Forgiven, Unanswered int64
}

// Gone returns the figures of forgotten buckets, and of calls that brought nothing.
func (f *Figures) Gone() Gone {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Gone{f.evicted, f.refused.Top(), f.rejected, f.forgiven, f.unanswered}
}

// leaseID returns the id under which the Limiter leases. It is that of the process, unless the policy came back as one
// that cannot take up its last Limiter: then Redis must tell the calls of both apart.
func (l *Limiter) leaseID() string {
	id := *l.Group.Lease.Load()
	if !l.Beside {
		return id
	}
	n, _ := strconv.ParseUint(id, 16, 64)
	return fmt.Sprintf("%016x", n^local.Hash(uint64(l.Number), local.ID{Key: l.Name}))
}

// place returns the place of the policy among those that this process announces, -1 if it is removed.
func (l *Limiter) place() int { return int(l.Place.Load()) }

// What is special about all decisions of a Limiter. Most decisions are made while none of these is set.
const (
	ModeTraced    = 1 << iota // a hook receives decisions
	ModeShadow                // refusals admit
	ModeUnlimited             // there is no limit, and no PerKey
	modeCarried               // requests have carried limits
	ModeStanding              // it has standing shares
)

// MaxKeyLength is the longest key, in bytes.
const MaxKeyLength = 64 << 10

// ID returns the ID of a key's bucket in the cache.
func (l *Limiter) ID(key string) local.ID { return local.ID{Policy: l.Number, Key: remote.Digest(key)} }

// phase returns where the windows of a key begin, in µs. It must be the same in every process.
func (l *Limiter) phase(key string) int64 {
	if l.Kind.Algorithm != lua.FixedWindow || l.Kind.Calendar {
		return 0
	}
	const basis = 0xcbf29ce484222325 // of FNV
	return int64(local.Hash(basis, local.ID{Key: key}) % uint64(l.Kind.Window))
}

// keepStats adds the figures of a forgotten bucket.
func (l *Limiter) keepStats(key string, s local.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evicted.Add(s)
	l.refused.Add(RefusedOf(key, s))
}

// forgive counts n tokens of debt that no call can report.
func (l *Limiter) forgive(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgiven += n
}

// countFailure counts a call that was not answered, or that the store rejected because of its bucket: the Redis key
// has another type, or is damaged. Each rejected bucket makes one line in the log. The line does not name the key,
// which may be a secret.
func (l *Limiter) countFailure(call *lua.Call, err error) {
	rejected := dispatch.IsScriptError(err)
	l.mu.Lock()
	if rejected {
		l.rejected++
	} else {
		l.unanswered += call.Want
	}
	l.mu.Unlock()
	if j := l.Group.Journal; rejected && j.FirstTime(call.Bucket) {
		j.Tally("refused "+l.Name, 1, slog.LevelError,
			"redis refuses buckets, as they are not what the limiter wrote: the fail mode decides for their keys",
			"policy", l.Name, "error", err)
	}
}
