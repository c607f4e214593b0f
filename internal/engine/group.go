package engine

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
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/report"
	"github.com/tiered-limiter/tiered-limiter/internal/standing"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Options are what a Group is made of.
type Options struct {
	Store   remote.Store
	Budget  time.Duration  // see tiered.Options
	MaxKeys int            // of each cache
	Uniform func() float64 // every random choice except the lease id and the seeds of hashes
	Known   bool           // the number of processes is known without Redis
	Journal *report.Journal
	Hooks   Hooks

	// Initial returns the policy of new buckets of the Limiter that has a number, and is in use.
	Initial func(number int) *local.Policy
}

// Group is what the Limiters of one tiered.Group share. All methods may be called concurrently.
type Group struct {
	Options
	Base  time.Time
	Lease atomic.Pointer[string] // this process' id: see newLease

	Cache           *local.Cache[Bucket, *Bucket]
	CacheAfterClose *local.Cache[Bucket, *Bucket] // for decisions after Close
	Dispatch        *dispatch.Dispatcher          // sends the calls; set before the first decision
	Shares          standing.Shares               // the standing shares of all policies that have some
	HasShares       atomic.Bool                   // some policy has standing shares
	FleetKnown      atomic.Bool                   // the size of the fleet is known, from Redis or from Options
	Closed          atomic.Bool                   // decisions follow the fail modes, and leases are returned
	Standstills     atomic.Int64                  // so far
	Simulated       Simulated                     // nil in a service

	seq          atomic.Int64 // of all calls of all keys: a key that was evicted must not begin at 1 again
	wallAhead    atomic.Int64 // ns by which the wall clock was ahead of the monotonic clock
	standstillMu sync.Mutex   // held while leases are dropped after a standstill
	leaseGen     atomic.Int64 // rises before and after each standstill. Tokens are returned only within one generation

	waiters       sync.Pool // of *waiter
	schedule      *schedule
	queues        waitQueues
	joinMu        sync.Mutex           // held while one request joins several queues
	spent         local.SpentFallbacks // what evicted keys have used of what they may use in an outage
	warnFleetOnce sync.Once            // warns that the size of the fleet is not known
	forgotten     chan struct{}        // capacity 1: a bucket was removed
}

// NewGroup returns a Group without Limiters. It makes no calls: Dispatch is to be set, and Run to be called.
func NewGroup(o Options) *Group {
	g := &Group{
		Options: o, Base: time.Now().Add(-1), // so that no time of this Group is 0, which often means never
		forgotten: make(chan struct{}, 1),
	}
	g.Simulated, _ = o.Store.(Simulated)
	g.newLease()
	var salt uint64 // of the keys' hashes; 0 is random
	if g.Simulated != nil {
		salt = g.Simulated.Entropy()
	}
	if g.spent.Salt = salt; salt == 0 {
		g.spent.Salt = mathrand.Uint64()
	}
	g.waiters.New = newWaiter
	g.FleetKnown.Store(o.Known)
	g.schedule = newSchedule(g)
	g.Cache = local.NewCache(o.MaxKeys, local.Owner[Bucket, *Bucket]{
		New:    g.newBucket,
		Evict:  func(b *Bucket, e local.Effect) { b.apply(g.Now(), e) },
		Closed: g.keepStats,
		Salt:   salt,
	})
	g.CacheAfterClose = local.NewCache(o.MaxKeys, local.Owner[Bucket, *Bucket]{
		New: g.newBucket, Evict: func(*Bucket, local.Effect) {}, Closed: func(*Bucket) {}, Salt: salt,
	})
	return g
}

// Run checks buckets when they are due, until ctx ends.
func (g *Group) Run(ctx context.Context) { g.schedule.run(ctx) }

// Now returns the time since the Group's base, by the monotonic clock. A decision reads it once.
func (g *Group) Now() time.Duration { return time.Since(g.Base) }

// newBucket makes a bucket for the cache.
func (g *Group) newBucket(id local.ID) *Bucket {
	b := new(Bucket)
	b.Init(g.Initial(id.Policy), id.Key)
	return b
}

// keepStats keeps the figures of a bucket that was removed.
func (g *Group) keepStats(b *Bucket) {
	b.Limiter().keepStats(b.Key(), b.Stats())
	select {
	case g.forgotten <- struct{}{}:
	default:
	}
}

// find returns the bucket of id. After Close it returns one that never asks Redis.
func (g *Group) find(now time.Duration, id local.ID) *Bucket {
	if b := g.Cache.Hot(now, id.Policy); b != nil && b.Is(id) {
		return b
	}
	if g.Closed.Load() {
		return g.CacheAfterClose.Get(now, id)
	}
	return g.Cache.Get(now, id)
}

// Each calls do for each bucket, with the lock of its cache held.
func (g *Group) Each(do func(*Bucket)) {
	g.Cache.All(do)
	g.CacheAfterClose.All(do)
}

// fleetOf returns how many processes share b's limit, at least 1. If that is unknown, it returns Options.Processes. The
// node of a bucket is unknown after Close. Then the node with the most processes counts.
func (g *Group) fleetOf(b *Bucket) int64 {
	place := b.Limiter().place()
	if n := b.node.Load(); n != nil {
		return n.Processes(place)
	}
	return g.Dispatch.MostProcesses(place)
}

// warnIfFleetUnknown warns, once, if a fallback decides while the number of processes is unknown. That is dangerous,
// because each process then admits the whole limit.
func (g *Group) warnIfFleetUnknown() {
	if g.FleetKnown.Load() {
		return
	}
	g.warnFleetOnce.Do(func() {
		g.Journal.Line(slog.LevelWarn, "the number of processes is not known, so each admits the whole limit alone "+
			"while redis does not answer: set Options.Processes")
	})
}

// newLease draws a new lease id of 64 random bits. Host and pid would not do, because they come back after a restart.
func (g *Group) newLease() {
	var id [8]byte
	if g.Simulated != nil {
		binary.BigEndian.PutUint64(id[:], g.Simulated.Entropy())
	} else {
		_, _ = rand.Read(id[:]) // never fails
	}
	text := hex.EncodeToString(id[:])
	g.Lease.Store(&text)
}

// WatchClock ends all leases if the wall clock has run ahead of the monotonic clock since the last check. It also
// draws a new lease id, because this machine may be a copy of one that still runs with the old id. Redis would take
// the calls of both for those of one process.
func (g *Group) WatchClock(now time.Duration) {
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
	var all []*Bucket
	g.Cache.All(func(b *Bucket) { all = append(all, b) })
	for _, b := range all {
		b.apply(now, b.Expire(now))
	}
	g.Shares.Over(now)
	g.Dispatch.Resume(now)
	by := time.Duration(ahead - before)
	g.Standstills.Add(1)
	g.Hooks.Standstill(by)
	g.Journal.Line(slog.LevelWarn, "the clock jumped: all leases were given up", "by", by)
}

// ahead returns by how many ns the wall clock has run ahead of the monotonic clock since the base. time.Now reads one
// clock after the other. If the thread loses the processor in between, that looks like a standstill: on a busy machine
// about once in 10⁵ calls. ahead tries three times to rule that out. If it cannot, ok is false.
func (g *Group) ahead() (ns int64, ok bool) {
	const heldUp = time.Millisecond // far below a standstill, far above what three readings take
	for range 3 {
		before := g.Now()
		t := time.Now()
		if g.Now()-before < heldUp {
			return t.UnixNano() - g.Base.UnixNano() - int64(t.Sub(g.Base)), true
		}
	}
	return 0, false
}

// Poll implements [dispatch.Options].Poll.
func (g *Group) Poll(now time.Duration) (lua.Poll, bool) {
	if !g.HasShares.Load() {
		return lua.Poll{}, false
	}
	return g.Shares.Poll(now, func() string {
		return fmt.Sprintf("%s.%x", *g.Lease.Load(), g.seq.Add(1)) // a copy of this process has another lease id
	})
}

// Retire takes the keys of Limiters out of use. They return what they hold, and are forgotten unless somebody uses them.
func (g *Group) Retire(removed []*Limiter) {
	g.Cache.Retire(g.Now(), func(b *Bucket) bool { return slices.Contains(removed, b.Limiter()) })
}

// Errors of the end of a Group.
var (
	ErrClosed  = errors.New("tiered: the Group is closed")
	ErrTooLate = errors.New("an earlier Close ended with its context") // so no call gives back what is left
)

// Empty retires all buckets and waits until their tokens are returned and they are removed. It gives up when ctx ends, and when
// callsEnded is closed, because then no goroutine makes calls any more.
func (g *Group) Empty(ctx context.Context, callsEnded <-chan struct{}) error {
	// A decision under way may have made another bucket. It ends within Budget, so check again after that.
	again := time.NewTicker(g.Budget)
	defer again.Stop()
	for {
		g.Cache.Empty(g.Now())
		if keys, leaving, _ := g.Cache.Counts(); keys+leaving == 0 {
			return nil
		}
		select {
		case <-g.forgotten:
		case <-again.C:
		case <-callsEnded:
			if keys, leaving, _ := g.Cache.Counts(); keys+leaving > 0 {
				return ErrTooLate
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Spent returns what evicted keys have used of what they may use in an outage.
func (g *Group) Spent() *local.SpentFallbacks { return &g.spent }
