package tiered

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Group is any number of policies over one store: they share one cache of keys, one queue of calls to each Redis node
// and one set of goroutines. All methods may be called concurrently. The zero Group and a nil one refuse: they have no
// policies, and methods that return an error say so.
type Group struct {
	store        remote.Store
	options      options
	lease        atomic.Pointer[string] // this process' id: see newLease
	base         time.Time
	seq          atomic.Int64 // of all calls of all keys: a key that was evicted must not begin at 1 again
	wallAhead    atomic.Int64 // ns by which the wall clock was ahead of the monotonic clock
	standstillMu sync.Mutex   // held while leases are dropped after a standstill

	standstills atomic.Int64 // so far
	leaseGen    atomic.Int64 // rises before and after each standstill. Tokens are returned only within one generation

	waiters         sync.Pool // of *waiter
	cache           *local.Cache[bucket, *bucket]
	cacheAfterClose *local.Cache[bucket, *bucket] // for decisions after Close
	schedule        *schedule
	limiters        limiters
	queues          waitQueues
	joinMu          sync.Mutex           // held while one request joins several queues
	dispatch        *dispatch.Dispatcher // sends the calls
	shares          standing.Shares      // the standing shares of all policies that have some
	spent           local.SpentFallbacks // what evicted keys have used of what they may use in an outage
	sharesReport    sharesReport
	hasShares       atomic.Bool // some policy has standing shares
	trace           *tracer
	journal         *report.Journal // nil without a Logger

	hasAnnounced  atomic.Bool // this process has announced its policies once
	fleetKnown    atomic.Bool // the size of the fleet is known, from Redis or from Options
	warnFleetOnce sync.Once   // warns that it is not

	warnPlacesOnce sync.Once // warns that there are more policies than can be announced

	closed        atomic.Bool // decisions follow the fail modes, and leases are returned
	stop          context.CancelFunc
	stopHooks     context.CancelFunc // ends the hooks; the last step of Close
	tasks         sync.WaitGroup     // all goroutines but those of callbacks and of the dispatcher
	callbacks     sync.WaitGroup     // the goroutines that call the hooks and the Logger
	setPoliciesMu sync.Mutex         // one SetPolicies at a time
	reloads       reloads

	forgotten chan struct{} // capacity 1: a bucket was removed

	// A Close whose context ends first ends the calls. Then another one can give nothing back.
	callsEnd   sync.Once
	callsEnded chan struct{} // closed when no goroutine makes calls any more, nor will

	simulated simulated // nil in a service
}

// NewGroup returns a Group over a store. It does not wait for Redis, which may be down. A nil o means the defaults.
//
// Errors name each field that breaks its rule, all at once.
func NewGroup(s remote.Store, o *Options) (*Group, error) {
	filled, err := o.fill()
	if err := errors.Join(remote.Check(s), err); err != nil {
		return nil, err
	}
	g := &Group{
		store: s, options: filled, base: time.Now().Add(-1), // so that no time of this Group is 0, which often means never
		forgotten: make(chan struct{}, 1), callsEnded: make(chan struct{}),
	}
	g.simulated, _ = s.(simulated)
	g.newLease()
	var salt uint64 // of the keys' hashes; 0 is random
	if g.simulated != nil {
		salt = g.simulated.Entropy()
	}
	if g.spent.Salt = salt; salt == 0 {
		g.spent.Salt = mathrand.Uint64()
	}
	g.waiters.New = newWaiter
	g.fleetKnown.Store(filled.Processes > 0)
	g.trace = newTracer(filled.Trace)
	g.journal = report.NewJournal(filled.Logger)
	g.limiters.init()
	g.schedule = newSchedule(g)
	g.cache = local.NewCache(filled.MaxKeys, local.Owner[bucket, *bucket]{
		New:    g.newBucket,
		Evict:  func(b *bucket, e local.Effect) { b.apply(g.now(), e) },
		Closed: g.keepStats,
		Salt:   salt,
	})
	g.cacheAfterClose = local.NewCache(filled.MaxKeys, local.Owner[bucket, *bucket]{
		New: g.newBucket, Evict: func(*bucket, local.Effect) {}, Closed: func(*bucket) {}, Salt: salt,
	})
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.dispatch = dispatch.New(ctx, g.dispatchOptions())
	g.tasks.Go(func() { g.schedule.run(ctx) })
	g.dispatch.Start(ctx)
	hooksCtx, stopHooks := context.WithCancel(context.Background())
	g.stopHooks = stopHooks
	g.callbacks.Go(func() {
		g.trace.calls.Run(hooksCtx, func(what string) {
			g.journal.Tally("hook", 1, slog.LevelError, "a trace hook panicked", "panic", what)
		})
	})
	if g.journal != nil {
		g.callbacks.Go(func() { g.journal.Run(ctx) })
	}
	if r, ok := s.(interface{ SkipsHooks() bool }); ok && r.SkipsHooks() {
		g.journal.Line(slog.LevelWarn, "hooks of the redis client, such as traces, do not see the limiter's calls: "+
			"set ContextTimeoutEnabled in its options")
	}
	return g, nil
}

// now returns the time since the Group's base, by the monotonic clock. A decision reads it once.
func (g *Group) now() time.Duration { return time.Since(g.base) }

// newBucket makes a bucket for the cache.
func (g *Group) newBucket(id local.ID) *bucket {
	b := new(bucket)
	b.Init(g.limiter(id.Policy).settings.Load().initial, id.Key)
	return b
}

// keepStats keeps the figures of a bucket that was removed.
func (g *Group) keepStats(b *bucket) {
	b.limiter().keepStats(b.key(), b.Stats())
	select {
	case g.forgotten <- struct{}{}:
	default:
	}
}

// dispatchOptions are those of the Group's dispatcher.
func (g *Group) dispatchOptions() dispatch.Options {
	o := dispatch.Options{
		Store: g.store, Base: g.base, Timeout: g.options.Timeout, ClientTimeout: g.options.clientTimeout(),
		MaxInFlight: g.options.MaxInFlight, Processes: g.options.Processes, Uniform: g.options.uniform,
		Lease: func() string { return *g.lease.Load() }, Observer: observer{g}, Announced: g.announced,
		Poll: g.poll, Polled: g.polled,
	}
	if g.simulated != nil {
		o.Settle = func(node int) { // calls of one instant leave together, in any order of arrival
			g.simulated.Settle(0)
			if node > 0 {
				g.simulated.Settle(uint64(node))
			}
		}
	}
	return o
}

// find returns the bucket of id. After Close it returns one that never asks Redis.
func (g *Group) find(now time.Duration, id local.ID) *bucket {
	if b := g.cache.Hot(now, id.Policy); b != nil && b.Is(id) {
		return b
	}
	if g.closed.Load() {
		return g.cacheAfterClose.Get(now, id)
	}
	return g.cache.Get(now, id)
}

// fleetOf returns how many processes share b's limit, at least 1. If that is unknown, it returns Options.Processes. The
// node of a bucket is unknown after Close. Then the node with the most processes counts.
func (g *Group) fleetOf(b *bucket) int64 {
	place := b.limiter().place()
	if n := b.node.Load(); n != nil {
		return n.Processes(place)
	}
	return g.dispatch.MostProcesses(place)
}

// warnIfFleetUnknown warns, once, if a fallback decides while the number of processes is unknown. That is dangerous,
// because each process then admits the whole limit.
func (g *Group) warnIfFleetUnknown() {
	if g.fleetKnown.Load() {
		return
	}
	g.warnFleetOnce.Do(func() {
		g.journal.Line(slog.LevelWarn, "the number of processes is not known, so each admits the whole limit alone "+
			"while redis does not answer: set Options.Processes")
	})
}

// newLease draws a new lease id of 64 random bits. Host and pid would not do, because they come back after a restart.
func (g *Group) newLease() {
	var id [8]byte
	if g.simulated != nil {
		binary.BigEndian.PutUint64(id[:], g.simulated.Entropy())
	} else {
		_, _ = rand.Read(id[:]) // never fails
	}
	text := hex.EncodeToString(id[:])
	g.lease.Store(&text)
}

// watchClock ends all leases if the wall clock has run ahead of the monotonic clock since the last check. It also
// draws a new lease id, because this machine may be a copy of one that still runs with the old id. Redis would take
// the calls of both for those of one process.
func (g *Group) watchClock(now time.Duration) {
	ahead, ok := g.ahead()
	if !ok {
		return // the next check is soon
	}
	if ahead-g.wallAhead.Load() < int64(dispatch.Standstill) {
		g.wallAhead.Store(ahead)
		return
	}
	g.standstillMu.Lock() // no call leaves with the old id meanwhile
	defer g.standstillMu.Unlock()
	before := g.wallAhead.Load()
	if ahead-before < int64(dispatch.Standstill) {
		return
	}
	g.leaseGen.Add(1)
	defer g.leaseGen.Add(1)
	g.newLease()
	defer g.wallAhead.Store(ahead)
	var all []*bucket
	g.cache.All(func(b *bucket) { all = append(all, b) })
	for _, b := range all {
		b.apply(now, b.Expire(now))
	}
	g.shares.Over(now)
	g.dispatch.Resume(now)
	by := time.Duration(ahead - before)
	g.standstills.Add(1)
	g.trace.fault(FaultEvent{Fault: "standstill", By: by})
	g.journal.Line(slog.LevelWarn, "the clock jumped: all leases were given up", "by", by)
}

// ahead returns by how many ns the wall clock has run ahead of the monotonic clock since the base. time.Now reads one
// clock after the other. If the thread loses the processor in between, that looks like a standstill: on a busy machine
// about once in 10⁵ calls. ahead tries three times to rule that out. If it cannot, ok is false.
func (g *Group) ahead() (ns int64, ok bool) {
	const heldUp = time.Millisecond // far below a standstill, far above what three readings take
	for range 3 {
		before := g.now()
		t := time.Now()
		if g.now()-before < heldUp {
			return t.UnixNano() - g.base.UnixNano() - int64(t.Sub(g.base)), true
		}
	}
	return 0, false
}

// Ping asks every known node of the store, and returns nil if all of them record this process. The error names the
// nodes that do not, each with its cause: a mistyped address, a refused password, a missing right. A node whose breaker
// is open is asked only when a probe is due. In between the error has what the last probe met.
//
// Call it at the start, to learn of a mistake before traffic does. A readiness check should pass for good once Ping has
// returned nil, as httplimit.Ready does, unless the service is useless without Redis (FailClosed). Ping takes one
// round trip. It blocks for at most 0.5 s with the default Timeout, 2.1 s after several that had no answer, and never longer
// than ctx. In general that is twice the time for which a call may go on in the background (see [Options].Timeout), or 2 s,
// and 0.1 s to find the cause.
func (g *Group) Ping(ctx context.Context) error {
	if g.isZero() {
		return errZeroGroup
	}
	if ctx == nil {
		ctx = context.Background()
	}
	err := errClosed
	if !g.closed.Load() {
		err = g.dispatch.Ping(ctx, func(node remote.Node, err error) error { return withRule(g.causeOf(node, err)) })
	}
	if err == nil || errors.Is(err, errClosed) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Close returns all leases to Redis, takes this process out of the count of processes there, and ends all goroutines.
// It does not close the store. It returns nil when that is done. If ctx ends first, the error wraps ctx.Err(), and
// tokens that were not returned are burnt when their leases end. Calls to Redis may then still begin for three times
// Options.Timeout, and go on for as long as [Options].Timeout says. Close may be called again, to wait for their end. It
// returns an error then if there are tokens that nobody can return any more.
//
// Later decisions follow the fail mode: their Reason is Fallback, FallbackSpent, Open or Unavailable, and [Limiter.Wait]
// does as in an outage. Close the Group after the last request: after Close each fallback begins full again, so more than
// the limit may be admitted.
//
// Close waits until the hooks of Options.Trace and the handler of the Logger have returned and all events are delivered. So
// neither may call it: it would wait for itself, until ctx ends, and for ever if ctx does not end.
func (g *Group) Close(ctx context.Context) error {
	if g.isZero() {
		return errZeroGroup
	}
	if ctx == nil {
		ctx = context.Background()
	}
	g.closed.Store(true)
	g.shares.Close(g.now())
	err := g.empty(ctx)
	g.dispatch.Stop()
	g.stop()
	if err == nil {
		g.dispatch.Leave(ctx)
	}
	g.stopHooks()
	g.callsEnd.Do(func() {
		go func() {
			g.tasks.Wait()
			g.dispatch.Wait()
			close(g.callsEnded)
		}()
	})
	ended := make(chan struct{})
	go func() {
		<-g.callsEnded
		g.callbacks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case errors.Is(err, errTooLate):
		return fmt.Errorf("tiered: the Group is closed%s: %w", g.unreturned(), err)
	case err != nil:
		return fmt.Errorf("tiered: the Group is not closed yet%s: %w", g.unreturned(), err)
	}
	return nil
}

// errTooLate says that a Close ended with its context, so that no call gives back what is left.
var errTooLate = errors.New("an earlier Close ended with its context")

// unreturned names what the Group still holds, if that is anything: tokens by policy.
func (g *Group) unreturned() string {
	var all []string
	for name, p := range g.Stats().Policies {
		if p.Held > 0 {
			all = append(all, fmt.Sprintf("%d tokens of policy %q", p.Held, name))
		}
	}
	if all == nil {
		return ""
	}
	slices.Sort(all)
	return ", and " + strings.Join(all, ", ") + " were not given back"
}

// empty retires all buckets and waits until their tokens are returned and they are removed.
func (g *Group) empty(ctx context.Context) error {
	// A decision under way may have made another bucket. It ends within Budget, so check again after that.
	again := time.NewTicker(g.options.Budget)
	defer again.Stop()
	for {
		g.cache.Empty(g.now())
		if keys, leaving, _ := g.cache.Counts(); keys+leaving == 0 {
			return nil
		}
		select {
		case <-g.forgotten:
		case <-again.C:
		case <-g.callsEnded:
			if keys, leaving, _ := g.cache.Counts(); keys+leaving > 0 {
				return errTooLate
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
