package tiered

import (
	"context"
	"errors"
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

// Limiter decides by one policy. All methods may be called concurrently. The zero Limiter and a nil one refuse.
type Limiter struct {
	group     *Group
	number    int
	placeOf   atomic.Int64  // see place
	name      string        // of the policy
	kind      remote.Kind   // of its buckets
	mode      atomic.Uint32 // what is special about all its decisions: the bits below
	ownsGroup bool          // made by New, so Close closes the Group

	settings atomic.Pointer[settings]
	setMu    sync.Mutex // one SetPolicy at a time
	lookUps  lookUps

	refreshes atomic.Int64 // calls of Refresh

	mu           sync.Mutex
	evictedStats local.Stats // of forgotten buckets, and by fail modes that were changed
	rejected     int64       // calls that the store refused for their bucket alone
	forgiven     int64       // debt that was given up because Redis rejected the calls that reported it
	unanswered   int64       // tokens asked for by calls without an answer
	others       otherLimits // processes with other limits

	waits             report.Waits
	refused           report.Evicted // what forgotten buckets refused
	charged           atomic.Int64   // tokens charged to standing shares, or as a debt
	admittedUnlimited atomic.Int64   // tokens admitted without a limit
	shadowed          atomic.Int64   // tokens that were refused, and yet admitted
	perKeyFaults      atomic.Int64   // PerKey panicked or returned no limit, or a request carried an invalid one
	unknownPlans      atomic.Int64   // requests with a plan that the policy does not have
	carries           atomic.Bool    // requests have carried limits
	standing          standingUse
	requests          report.Requests
	nearLimit         atomic.Int64 // see [local.Policy].NearLimit
	paid              atomic.Int64 // see [local.Policy].Paid
	refunded          atomic.Int64 // tokens of admitted requests that were given back: they are counted as spent no more
	beside            bool         // the policy had another Limiter, which may still be used: see leaseID
	removed           atomic.Bool  // by SetPolicies
	was               *Policy      // the last policy before it was removed; guarded by the mutex of the Group's limiters
}

// leaseID returns the id under which the Limiter leases. It is that of the process, unless the policy came back as one
// that cannot take up its last Limiter: then Redis must tell the calls of both apart.
func (l *Limiter) leaseID() string {
	id := *l.group.lease.Load()
	if !l.beside {
		return id
	}
	n, _ := strconv.ParseUint(id, 16, 64)
	return fmt.Sprintf("%016x", n^local.Hash(uint64(l.number), local.ID{Key: l.name}))
}

// place returns the place of the policy among those that this process announces, -1 if it is removed.
func (l *Limiter) place() int { return int(l.placeOf.Load()) }

// The bits of Limiter.mode. Most decisions are made while none of them is set.
const (
	modeTraced    = 1 << iota // a hook receives decisions
	modeShadow                // refusals admit
	modeUnlimited             // there is no limit, and no PerKey
	modeCarried               // requests have carried limits
	modeStanding              // it has standing shares
)

func newLimiter(g *Group, number int, p Policy) *Limiter {
	l := &Limiter{group: g, number: number, name: p.Name, kind: p.kind()}
	l.set(p)
	return l
}

// New returns a Limiter with a Group of its own; its Close closes both. See [NewGroup] and [Group.NewLimiter].
func New(s remote.Store, p Policy, o *Options) (*Limiter, error) {
	if err := p.Validate(); err != nil {
		_, optionsErr := o.fill()
		return nil, errors.Join(err, optionsErr, remote.Check(s))
	}
	g, err := NewGroup(s, o)
	if err != nil {
		return nil, err
	}
	l, err := g.NewLimiter(p)
	if err != nil {
		return nil, err
	}
	l.ownsGroup = true
	return l, nil
}

// Group returns the Group of the Limiter, also if [New] made it: for [Group.Stats] and [Group.Ping]. It is nil if the
// Limiter is nil or zero.
func (l *Limiter) Group() *Group {
	if l.isZero() {
		return nil
	}
	return l.group
}

// Close closes the Group of a Limiter made by [New], as [Group.Close] does. For one made by [Group.NewLimiter] it does
// nothing: close the Group.
func (l *Limiter) Close(ctx context.Context) error {
	if l.isZero() {
		return errZeroLimiter
	}
	if !l.ownsGroup {
		return nil
	}
	return l.group.Close(ctx)
}

// MaxKeyLength is the longest key, in bytes. Any bytes are legal.
const MaxKeyLength = 64 << 10

// id returns the ID of a key's bucket in the cache.
func (l *Limiter) id(key string) local.ID { return local.ID{Policy: l.number, Key: remote.Digest(key)} }

// call returns a call for the bucket of that name, with the numbers of a policy.
func call(name string, p *local.Policy) lua.Call {
	c := p.Call
	c.Bucket = name
	return c
}

// keepStats adds the figures of a forgotten bucket.
func (l *Limiter) keepStats(key string, s local.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.evictedStats.Add(s)
	l.refused.Add(refusedOf(key, s))
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
	if j := l.group.journal; rejected && j.FirstTime(call.Bucket) {
		j.Tally("refused "+l.name, 1, slog.LevelError,
			"redis refuses buckets, as they are not what the limiter wrote: the fail mode decides for their keys",
			"policy", l.name, "error", err)
	}
}
