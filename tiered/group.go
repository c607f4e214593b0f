package tiered

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Group is any number of policies over one store: they share one cache of keys, one set of connections and one set of
// goroutines. All methods may be called concurrently.
type Group struct {
	store        remote.Store
	options      options
	lease        atomic.Pointer[string] // this process' id: see newLease
	shardSeed    uint64                 // this process' first lease id: it tells which shards are its own
	base         time.Time
	seq          atomic.Int64 // of all calls of all keys: a key that is forgotten and comes back must not begin at 1
	wallAhead    atomic.Int64 // ns by which the wall clock was ahead of the monotonic one
	standstillMu sync.Mutex   // one awakening at a time

	standstills atomic.Int64 // awakenings
	leaseGen    atomic.Int64 // rises before each of them and after it: what was taken in another era is not given back

	waiters         sync.Pool // of *waiter
	cache           *local.Cache[bucket, *bucket]
	cacheAfterClose *local.Cache[bucket, *bucket] // of decisions after Close
	schedule        *schedule
	limiters        limiters
	queues          waitQueues
	joinMu          sync.Mutex           // held while one request joins several lines
	dispatch        *dispatch.Dispatcher // sends the calls
	trace           *tracer
	journal         *journal // nil without a Logger

	fleetKnown    atomic.Bool // the size of the fleet is known, from Redis or from Options
	warnFleetOnce sync.Once   // says that it is not

	closed    atomic.Bool // decisions follow the fail modes, leases go back
	stop      context.CancelFunc
	stopHooks context.CancelFunc // ends the hooks: after all that Close does
	tasks     sync.WaitGroup     // every goroutine but the callers and the dispatcher's
	callbacks sync.WaitGroup     // those that call the hooks and the Logger
	forgotten chan struct{}      // capacity 1: a bucket was forgotten

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
		store: s, options: filled, base: time.Now(),
		forgotten: make(chan struct{}, 1),
	}
	g.simulated, _ = s.(simulated)
	g.newLease()
	g.shardSeed, _ = strconv.ParseUint(*g.lease.Load(), 16, 64)
	var salt uint64 // of the keys' hashes; 0 is random
	if g.simulated != nil {
		salt = g.simulated.Entropy()
	}
	g.waiters.New = newWaiter
	g.fleetKnown.Store(filled.Processes > 0)
	g.trace = newTracer(filled.Trace)
	g.journal = newJournal(g)
	g.limiters.byName = make(map[string]*Limiter)
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
	tell, silence := context.WithCancel(context.Background())
	g.stopHooks = silence
	g.callbacks.Go(func() {
		g.trace.run(tell, func(v any) {
			g.journal.tally("hook", 1, slog.LevelError, "a trace hook panicked", "panic", quote(v))
		})
	})
	if g.journal != nil {
		g.callbacks.Go(func() { g.journal.run(ctx) })
	}
	return g, nil
}

// limiters are a Group's, by number and by name.
type limiters struct {
	mu     sync.RWMutex
	all    []*Limiter // each policy's, followed by its shards
	byName map[string]*Limiter
}

// Limiter adds a policy to the Group. A name can be used once per Group.
func (g *Group) Limiter(p Policy) (*Limiter, error) {
	p = p.clone()
	if err := p.validate(); err != nil {
		return nil, err
	}
	if g.closed.Load() {
		return nil, errors.New("tiered: the Group is closed")
	}
	ls := &g.limiters
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.byName[p.Name] != nil {
		return nil, fmt.Errorf("tiered: Policy.Name is %q: the Group has a policy of that name", p.Name)
	}
	l := newLimiter(g, len(ls.all), p)
	ls.all = append(append(ls.all, l), l.shards...)
	ls.byName[p.Name] = l
	if l.shards != nil {
		g.dispatch.MeetAll() // each process that shares the limit is counted at the nodes of all shards
	}
	return l, nil
}

// Policies returns the policies, in the order in which they were added.
func (g *Group) Policies() []Policy {
	g.limiters.mu.RLock()
	defer g.limiters.mu.RUnlock()
	all := make([]Policy, 0, len(g.limiters.byName))
	for _, l := range g.limiters.all {
		if l.parent == l {
			all = append(all, l.Policy())
		}
	}
	return all
}

func (g *Group) limiter(number int) *Limiter {
	g.limiters.mu.RLock()
	defer g.limiters.mu.RUnlock()
	return g.limiters.all[number]
}

// now is the time since the Group's base, monotonic: one reading per decision.
func (g *Group) now() time.Duration { return time.Since(g.base) }

// fresh makes a bucket for the cache.
func (g *Group) newBucket(id local.ID) *bucket {
	b := new(bucket)
	b.Init(g.limiter(id.Policy).settings.Load().initial, id.Key)
	return b
}

// gone keeps the figures of a bucket that was forgotten.
func (g *Group) keepStats(b *bucket) {
	b.limiter().keepStats(b.key(), b.ownStats(b.Stats()))
	select {
	case g.forgotten <- struct{}{}:
	default:
	}
}

// dispatchOptions are those of the Group's dispatcher.
func (g *Group) dispatchOptions() dispatch.Options {
	o := dispatch.Options{
		Store: g.store, Base: g.base, Timeout: g.options.Timeout, Patience: g.options.clientTimeout(),
		MaxInFlight: g.options.MaxInFlight, Processes: g.options.Processes, Uniform: g.options.uniform,
		Lease: func() string { return *g.lease.Load() }, Observer: observer{g},
	}
	if g.simulated != nil {
		o.Settle = func() { g.simulated.Settle(0) } // what is pending now leaves together, whoever was quicker
	}
	return o
}

// find returns the bucket of id: after Close, one that never asks Redis.
func (g *Group) find(now time.Duration, id local.ID) *bucket {
	if b := g.cache.Hot(now, id.Policy); b != nil && b.Is(id) {
		return b
	}
	if g.closed.Load() {
		return g.cacheAfterClose.Get(now, id)
	}
	return g.cache.Get(now, id)
}

// fleetOf reports how many processes share b's limit, as far as is known; 1 when it is not.
func (g *Group) fleetOf(b *bucket) int64 {
	if n := b.node.Load(); n != nil {
		return n.Processes()
	}
	return max(int64(g.options.Processes), 1)
}

// sharedAlone warns, once, when a share decides while the number of processes is not known: the dangerous side, for each
// of them then admits the whole limit alone.
func (g *Group) warnIfFleetUnknown() {
	if g.fleetKnown.Load() {
		return
	}
	g.warnFleetOnce.Do(func() {
		g.journal.line(slog.LevelWarn, "the number of processes is not known, so each admits the whole limit alone "+
			"while redis does not answer: set Options.Processes")
	})
}

// newLease takes a new lease id: 64 random bits, never host and pid, which come back after a restart.
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

// watchClock ends all leases when the wall clock has run ahead of the monotonic one since the last look, and takes a new
// lease id: the machine may be a copy of one that runs on with the old one, and Redis would grant each of them what it
// granted the other.
func (g *Group) watchClock(now time.Duration) {
	ahead, ok := g.ahead()
	if !ok {
		return // the next look is soon
	}
	if ahead-g.wallAhead.Load() < int64(dispatch.Standstill) {
		g.wallAhead.Store(ahead)
		return
	}
	g.standstillMu.Lock() // nobody sends by the old id meanwhile
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
	g.dispatch.Resume(now)
	by := time.Duration(ahead - before)
	g.standstills.Add(1)
	g.trace.fault(FaultEvent{Fault: "standstill", By: by})
	g.journal.line(slog.LevelWarn, "the clock jumped: all leases were given up", "by", by)
}

// ahead reports by how much the wall clock has run ahead of the monotonic one since the base, in ns. One time.Now for both is
// not enough: it reads one after the other, and on a busy machine the thread may lose the processor in between, which looked
// like a standstill once in some 10⁵ calls. Where that cannot be ruled out three times in a row ok is false.
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

// Close gives all leases back, takes leave from Redis and ends all goroutines, then closes nothing of the store: who
// opened it closes it. It waits for that until ctx ends, and then reports ctx.Err(): what was not given back is burnt
// when its lease ends, and what still runs ends within three Timeouts. Later decisions follow the fail mode.
// Closing again waits again.
//
// In a hook of Options.Trace, or in the Logger's handler, it waits for neither of them: they end when that hook has returned
// and the others were told what had happened by then. That is known only on the goroutine that calls the hook: a hook that waits
// for another goroutine's Close waits until ctx ends.
func (g *Group) Close(ctx context.Context) error {
	if ctx == nil {
		ctx = context.Background()
	}
	g.closed.Store(true)
	err := g.empty(ctx)
	g.dispatch.Stop()
	g.stop()
	if err == nil {
		g.dispatch.Leave(ctx)
	}
	g.stopHooks()
	called := g.trace.goroutine.isCurrent() || g.journal.isCurrent() // then this goroutine would wait for itself
	ended := make(chan struct{})
	go func() {
		g.tasks.Wait()
		g.dispatch.Wait()
		if !called {
			g.callbacks.Wait()
		}
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("tiered: not all leases were given back: %w", err)
	}
	return nil
}

// emptied retires all buckets and waits until they are settled and forgotten.
func (g *Group) empty(ctx context.Context) error {
	// A decision that was under way may have made another bucket: look again after the time it can take.
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
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
