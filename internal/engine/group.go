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
	"time"

	"golang.org/x/time/rate"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// NewGroup returns a Group without Limiters. It makes no calls: Dispatch is to be set, and Run to
// be called.
func NewGroup(o Options) *Group {
	g := &Group{
		Options: o, Base: time.Now().Add(-1), // so that no time of this Group is 0, which often means never
		forgotten: make(chan struct{}, 1), debts: rate.NewLimiter(debtsPerSecond, debtsPerSecond/10),
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
	g.schedule.wake = make(chan struct{}, 1)
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
func (g *Group) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := g.Now()
		g.WatchClock(now)
		for _, b := range g.schedule.due(now) {
			b.apply(now, b.Check(now))
			b.tellDebt(now)
		}
		pause := g.schedule.pause(g.Now())
		g.due.Store(int64(g.Now() + pause))
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-g.schedule.wake:
		case <-timer.C:
		}
	}
}

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

// Each calls do for each bucket, with the lock of its cache held.
func (g *Group) Each(do func(*Bucket)) {
	g.Cache.All(do)
	g.CacheAfterClose.All(do)
}

// newLease draws a new lease id of 64 random bits. Host and pid would not do, because they come
// back after a restart.
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

// WatchClock ends all leases if the wall clock has run ahead of the monotonic clock since the last
// check. It also draws a new lease id, because this machine may be a copy of one that still runs
// with the old id. Redis would take the calls of both for those of one process.
//
// While a process is stopped, as in a frozen container, both clocks go on, and its leases end by
// themselves. That is a standstill too. It shows because nothing has watched the clock for as long
// as the shortest lease lasts, though Run was to do so. In a process that only waits for a busy
// machine, each call to Redis watches the clock.
func (g *Group) WatchClock(now time.Duration) {
	stopped := now - time.Duration(max(g.ran.Swap(int64(now)), g.due.Load()))
	ahead, ok := g.ahead()
	if !ok {
		return // the next check is soon
	}
	if ahead-g.wallAhead.Load() < int64(dispatch.Standstill) {
		g.wallAhead.Store(ahead)
		if stopped >= dispatch.MaxTimeout {
			g.stoodStill(stopped, "this process stood still: its leases have ended")
		}
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
	g.stoodStill(time.Duration(ahead-before), "the clock jumped: all leases were given up")
}

// stoodStill counts and reports a standstill.
func (g *Group) stoodStill(by time.Duration, what string) {
	g.Standstills.Add(1)
	g.Hooks.Standstill(by)
	g.Journal.Line(slog.LevelWarn, what, "by", by)
}

// ahead returns by how many ns the wall clock has run ahead of the monotonic clock since the base.
// time.Now reads one clock after the other. If the thread loses the processor in between, that
// looks like a standstill: on a busy machine about once in 10⁵ calls. ahead tries three times to
// rule that out. If it cannot, ok is false.
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

// Retire takes the keys of Limiters out of use. They return what they hold, and are forgotten
// unless somebody uses them.
func (g *Group) Retire(removed []*Limiter) {
	g.Cache.Retire(g.Now(), func(b *Bucket) bool { return slices.Contains(removed, b.Limiter()) })
}

// Errors of the end of a Group.
var (
	ErrClosed  = errors.New("tiered: the Group is closed")
	ErrTooLate = errors.New("an earlier Close ended with its context") // so no call gives back what is left
)

// Empty retires all buckets and waits until their tokens are returned and they are removed. It
// gives up when ctx ends, and when callsEnded is closed, because then no goroutine makes calls any
// more.
func (g *Group) Empty(ctx context.Context, callsEnded <-chan struct{}) error {
	// A decision under way may have made another bucket. It ends within Budget, so check again
	// after that.
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

// Yield lets everything else that happens at this instant happen first, in a simulation.
func (g *Group) Yield(order uint64) {
	if g.Simulated != nil {
		g.Simulated.Yield(order)
	}
}
