package atonce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/internal/fifo"
	"github.com/tiered-limiter/tiered-limiter/internal/places"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// The errors of Acquire and Wait, besides those of the context.
var (
	ErrFull    = errors.New("atonce: all places of the key are taken") // HTTP 429; also those of FailLocal
	ErrInvalid = errors.New("atonce: invalid request")                 // no key, or a number of places that the key cannot have
	ErrClosed  = errors.New("atonce: the Group is closed")

	// ErrUnavailable says that Redis does not answer, and the policy fails closed (503).
	ErrUnavailable = tiered.ErrUnavailable
)

// maxSenders is how many commands may be under way to a node at once. A sender whose command has no
// answer after Timeout is replaced.
const maxSenders = 2

// Limiter gives places of keys. Make it with [New]. All methods may be called concurrently.
type Limiter struct {
	group  *engine.Group
	policy atomic.Pointer[Policy]
	number int64 // of the Limiter in this process: its records in Redis are its own
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	wake   chan struct{} // capacity 1: something is watched

	mu        sync.Mutex
	keys      map[string]*key
	watched   map[*key]struct{} // keys with spare places, waiters or a fresh refusal
	outboxes  map[remote.Node]*outbox
	seq       int64
	closed    bool
	ended     bool          // nothing is sent any more
	idle      chan struct{} // closed when nothing is under way after closing
	told      bool          // that others have another number of places, or it changed here
	renewedAt time.Duration
	waiters   int64 // so far
	stats     Stats
}

// key is a key that is in use.
type key struct {
	places.Key
	name    string // or its digest
	bucket  string
	running fifo.Queue[*Place] // oldest first
	queue   fifo.Queue[*waiter]

	pending   bool          // in an outbox
	failing   bool          // the last claim had no answer
	asked     int64         // number of the newest waiter that the claim under way asks for
	askAt     time.Duration // waiters ask again from then on
	retryAt   time.Duration // after a failure nothing is sent before, but for new requests
	fullUntil time.Duration // until then there is no room for fullFor of fullOf places
	fullFor   int64
	fullOf    int64
}

// waiter is a request that has no place yet.
type waiter struct {
	use    Use
	n      int64
	most   int64 // places of the key, for this request
	waits  bool  // until its context ends
	number int64 // rises with each waiter
	link   fifo.Place[*waiter]
	place  *Place
	err    error
	done   chan struct{} // closed when place or err is set
}

// outbox is the claims that are due at one node.
type outbox struct {
	due     []*key
	senders int
	soon    bool // a timer will start a sender
}

var limiters atomic.Int64

// New adds a policy to a Group. It does not wait for Redis. Close the Group to end it. Two Limiters
// of one name share their places, as two processes do.
func New(g *tiered.Group, p Policy) (*Limiter, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l := &Limiter{
		number: limiters.Add(1), wake: make(chan struct{}, 1), idle: make(chan struct{}),
		keys: map[string]*key{}, watched: map[*key]struct{}{}, outboxes: map[remote.Node]*outbox{},
	}
	l.policy.Store(p.filled())
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	core, err := g.Host(engine.Guest[Stats]{
		Closing: func(ctx context.Context) {
			named.CompareAndDelete(ofGroup{g, p.Name}, l)
			l.close(ctx)
		},
		FailMode: func() (string, tiered.FailMode) { return p.Name, l.policy.Load().FailMode },
		Stats:    func() (string, Stats) { return p.Name, l.Stats() },
	})
	if err != nil {
		stop()
		return nil, err
	}
	l.group = core
	named.LoadOrStore(ofGroup{g, p.Name}, l)
	l.tasks.Go(func() { l.run(ctx) })
	return l, nil
}

// Policy returns the policy that is in force, and the zero Policy for a nil or zero Limiter.
func (l *Limiter) Policy() Policy {
	if l == nil || l.group == nil {
		return Policy{}
	}
	return *l.policy.Load()
}

// SetPolicy changes the policy, but not its name. If keys have fewer places now, requests that run
// are not disturbed, and a new one begins only when there is room.
func (l *Limiter) SetPolicy(p Policy) error {
	if l == nil || l.group == nil {
		return fmt.Errorf("atonce: the Limiter is nil or zero: must be made by New")
	}
	if err := p.Validate(); err != nil {
		return err
	}
	if name := l.policy.Load().Name; p.Name != name {
		return fmt.Errorf("atonce: Policy.Name is %q: must be %q, as before", p.Name, name)
	}
	l.policy.Store(p.filled())
	l.apply()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = true // for a while the number is another one everywhere
	return nil
}

// apply has those who wait, and the keys that are in use, go by the policy that is in force. PerKey
// is the user's, so it is called without the lock.
func (l *Limiter) apply() {
	var p *Policy
	for most := map[Use]int64{}; p != l.policy.Load(); {
		p = l.policy.Load()
		l.mu.Lock()
		for _, k := range l.keys {
			for at := k.queue.First(); at != nil; at = at.Next() {
				most[at.Member.use] = 0
			}
		}
		l.mu.Unlock()
		for u := range most {
			most[u] = int64(p.places(u.key, u.plan))
		}
		l.mu.Lock()
		for _, k := range l.keys {
			k.Life = p.Life
			for at := k.queue.First(); at != nil; {
				w := at.Member
				at = at.Next()
				if n, ok := most[w.use]; ok { // one that came since goes by the new policy
					w.most = n
				}
				if w.n > w.most {
					l.answer(k, w, nil, tooMany(w.n, w.most))
				}
			}
			l.settle(k, l.group.Now())
			l.push(k)
		}
		l.mu.Unlock()
	}
}

// tooMany is the error of a request for more places than its key has.
func tooMany(n, most int64) error {
	return fmt.Errorf("%w: %d places: must be 1 to %d, the places of the key", ErrInvalid, n, most)
}

// Use is a request for places of a key.
type Use struct {
	limiter   *Limiter
	key, plan string
	n         int
}

// For returns a request for one place of a key. A key has any bytes, and one at least.
func (l *Limiter) For(key string) Use { return Use{limiter: l, key: key, n: 1} }

// N is the request for n places: 1 … the places of the key.
func (u Use) N(n int) Use { u.n = n; return u }

// WithPlan is the request by a plan of the policy.
func (u Use) WithPlan(plan string) Use { u.plan = plan; return u }

// Acquire takes a place of a key, if one is free now. Otherwise the error is ErrFull, or
// ErrUnavailable if the fail mode says so. It waits for Redis for Options.Budget of the Group at
// most, and only if this process has no spare place.
func (l *Limiter) Acquire(ctx context.Context, key string) (*Place, error) {
	return l.For(key).Acquire(ctx)
}

// Wait takes a place of a key, and waits for one until ctx ends. Within a process, the caller that
// came first is served first. Processes share the places that become free. In an outage FailClosed
// ends the waiting.
func (l *Limiter) Wait(ctx context.Context, key string) (*Place, error) {
	return l.For(key).Wait(ctx)
}

// Acquire takes the places; see [Limiter.Acquire].
func (u Use) Acquire(ctx context.Context) (*Place, error) { return u.take(ctx, false) }

// Wait takes the places, and waits for them; see [Limiter.Wait].
func (u Use) Wait(ctx context.Context) (*Place, error) { return u.take(ctx, true) }

func (u Use) take(ctx context.Context, waits bool) (*Place, error) {
	l := u.limiter
	if l == nil || l.group == nil {
		return nil, fmt.Errorf("%w: the Limiter is nil or zero", ErrInvalid)
	}
	if ctx == nil {
		ctx = context.Background()
	}
	p := l.policy.Load()
	most := p.places(u.key, u.plan)
	switch {
	case u.key == "":
		return nil, l.refused(u.key, fmt.Errorf("%w: the key is empty", ErrInvalid))
	case u.n < 1 || u.n > most:
		return nil, l.refused(u.key, tooMany(int64(u.n), int64(most)))
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	place, w, err := l.begin(p, u, int64(most), waits)
	if w != nil {
		if l.policy.Load() != p { // it may have missed the change
			l.apply()
		}
		place, err = l.await(ctx, w, remote.Digest(u.key))
	}
	if err != nil {
		return nil, l.refused(u.key, err)
	}
	return place, nil
}

// refused tells the hook of a refusal.
func (l *Limiter) refused(key string, err error) error {
	if hook := l.policy.Load().Refused; hook != nil {
		l.guarded(func() { hook(key, err) })
	}
	return err
}

// begin takes places from what the process has, or refuses by what it knows. Otherwise it returns a
// waiter.
func (l *Limiter) begin(p *Policy, u Use, most int64, waits bool) (*Place, *waiter, error) {
	name, n := remote.Digest(u.key), int64(u.n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, ErrClosed
	}
	k := l.keys[name]
	if k == nil {
		k = &key{name: name, bucket: l.group.Store.PlacesName(p.Name, name)}
		l.keys[name] = k
	}
	if k.Life = p.Life; k.queue.Len() == 0 {
		k.Places = most
	}
	now := l.group.Now()
	k.Asked(now)
	if k.queue.Len() == 0 && k.Take(now, n) {
		l.stats.Spare++
		l.watch(k)
		return l.give(k, u, now), nil, nil
	}
	if !waits && now < k.fullUntil && n >= k.fullFor && most <= k.fullOf {
		l.stats.Refused++
		return nil, nil, ErrFull
	}
	w := &waiter{use: u, n: n, most: most, waits: waits, done: make(chan struct{})}
	l.waiters++
	w.number = l.waiters
	w.link.Member = w
	k.queue.Join(&w.link)
	l.watch(k)
	if node := l.node(k); node != nil && node.State() != failover.Closed && !node.ProbeDue(now) {
		k.failing = true
		l.failed(k, now)
	} else {
		l.push(k)
	}
	select {
	case <-w.done:
		return w.place, nil, w.err
	default:
		return nil, w, nil
	}
}

// await waits for the end of a waiter.
func (l *Limiter) await(ctx context.Context, w *waiter, name string) (*Place, error) {
	var budget <-chan time.Time
	if !w.waits {
		timer := time.NewTimer(l.group.Budget)
		defer timer.Stop()
		budget = timer.C
	}
	select {
	case <-w.done:
		return w.place, w.err
	case <-budget:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.done: // meanwhile
		if w.place != nil && ctx.Err() != nil {
			l.end(w.place)
			l.settle(w.place.key, l.group.Now())
			return nil, ctx.Err()
		}
		return w.place, w.err
	default:
	}
	k := l.keys[name]
	if ctx.Err() != nil {
		k.queue.Leave(&w.link)
		l.settle(k, l.group.Now()) // those behind it may need fewer
		return nil, ctx.Err()
	}
	l.byFailMode(k, w, l.group.Now())
	return w.place, w.err
}

// give makes a place of a request, whose places the key has counted.
func (l *Limiter) give(k *key, u Use, now time.Duration) *Place {
	n := int64(u.n)
	p := &Place{limiter: l, key: k, asked: u.key, n: n, at: now}
	p.link.Member = p
	k.running.Join(&p.link)
	l.stats.Running += n
	l.stats.Granted++
	return p
}

// end ends a place.
func (l *Limiter) end(p *Place) {
	p.ended = true
	p.key.Return(p.n)
	p.key.running.Leave(&p.link)
	l.stats.Running -= p.n
}

// settle gives what has become free to waiters, or to other processes that wait.
func (l *Limiter) settle(k *key, now time.Duration) {
	l.serve(k, now)
	switch {
	case k.Yields():
		l.push(k)
	case k.Rare(now):
		l.pushSoon(k)
	}
	l.watch(k)
}

// serve gives places to waiters in their order.
func (l *Limiter) serve(k *key, now time.Duration) {
	for first := k.queue.First(); first != nil; first = k.queue.First() {
		if !l.serveOne(k, first.Member, now, k.failing) {
			return
		}
	}
}

// serveOne gives a waiter its places, if there are some, or if Redis fails and the fail mode has
// some.
func (l *Limiter) serveOne(k *key, w *waiter, now time.Duration, failing bool) bool {
	k.Places = w.most
	granted := k.Granted() >= w.n
	switch {
	case k.Take(now, w.n):
		if !granted { // a request of this process has given it back
			l.stats.Spare++
		}
	case failing && l.admits(k, w.n):
		k.Admit(w.n)
		l.stats.FailMode++
	default:
		return false
	}
	l.answer(k, w, l.give(k, w.use, now), nil)
	return true
}

// answer ends a waiter.
func (l *Limiter) answer(k *key, w *waiter, p *Place, err error) {
	k.queue.Leave(&w.link)
	w.place, w.err = p, err
	close(w.done)
}

// admits reports whether the fail mode lets n more places be used.
func (l *Limiter) admits(k *key, n int64) bool {
	switch l.policy.Load().FailMode {
	case tiered.FailOpen:
		return true
	case tiered.FailClosed:
		return false
	}
	processes := int64(1)
	if node := l.node(k); node != nil {
		processes = node.AllProcesses()
	}
	return k.Running()+n <= max(1, k.Places/processes)
}

// byFailMode answers a waiter without Redis.
func (l *Limiter) byFailMode(k *key, w *waiter, now time.Duration) {
	if l.serveOne(k, w, now, true) {
		l.watch(k)
		return
	}
	if l.policy.Load().FailMode == tiered.FailLocal { // its part of the places is taken, as a fallback is spent
		l.stats.Refused++
		l.answer(k, w, nil, ErrFull)
		return
	}
	l.stats.Unavailable++
	l.answer(k, w, nil, ErrUnavailable)
}

// failed answers the requests that wait for Redis. A request that waits for a place goes on waiting
// for one of this process, unless the policy fails closed.
func (l *Limiter) failed(k *key, now time.Duration) {
	l.serve(k, now)
	closed := l.policy.Load().FailMode == tiered.FailClosed
	for at := k.queue.First(); at != nil; {
		w := at.Member
		at = at.Next()
		if !w.waits || closed {
			l.byFailMode(k, w, now)
		}
	}
}

// node returns the node of a key, or nil while it is unknown.
func (l *Limiter) node(k *key) *dispatch.Node {
	if id := l.group.Store.Node(k.bucket); id != "" {
		return l.group.Dispatch.Node(id)
	}
	return nil
}

// Usage is what Redis knows of a key.
type Usage struct {
	Running int // places that requests have, or that processes keep for the next ones
	Places  int
}

// Peek asks Redis how many places of a key are taken. It takes none, and waits for
// Options.Budget of the Group at most. The error wraps ErrUnavailable if Redis does not answer.
func (l *Limiter) Peek(ctx context.Context, key string) (Usage, error) {
	return l.For(key).Peek(ctx)
}
