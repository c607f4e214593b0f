package adversary

import (
	"strconv"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// process is one process of the fleet: the shipped cache, and the buckets that it ever held, until
// they close. It owns them as package tiered does, but acts only when it is told to.
type process struct {
	world   *World
	number  int    // its place in the fleet
	id      string // its lease id: a new one at each start
	policy  *local.Policy
	variant int // whose limits it uses
	cache   *local.Cache[bucket, *bucket]

	seq        int64 // of all its calls
	last       invariant.Numbers
	clockKnown bool          // the server's clock is known
	twin       bool          // a copy that does not know yet that it is one
	asleep     time.Duration // how long its clock stood still
	roundTrip  time.Duration // of its calls
	clockError time.Duration // of its estimate of the server's clock
	buckets    []*bucket     // not closed
	released   local.Stats   // of the closed ones
	late       []*taking     // of the closed ones, and not of the fallback: can still be refunded
	unanswered *request      // the last leased call that was executed, until its reply is accepted
	writtenOff int64         // debt that was charged and is reported no more, because its bucket gave it up
	stale      *stale        // a request that read the clock, and sleeps
}

// stale is a request that read the clock a while ago.
type stale struct {
	now   time.Duration
	event int // when its admission counts, should the lease have ended meanwhile
}

// id is the key that all is about; other makes its cache, which has room for one, evict it.
var (
	id    = local.ID{Key: "k"}
	other = local.ID{Key: "other"}
)

func (w *World) start(number int) *process {
	w.started++
	p := &process{
		world: w, number: number, id: strconv.Itoa(w.started), clockKnown: true,
		roundTrip: defaultRoundTrip, policy: w.policies[number], variant: number,
	}
	p.cache = local.NewCache(1, local.Owner[bucket, *bucket]{
		New:    p.newBucket,
		Evict:  func(b *bucket, e local.Effect) { b.apply(e) },
		Closed: p.bucketClosed,
	})
	return p
}

func (p *process) newBucket(of local.ID) *bucket {
	b := &bucket{process: p}
	b.Init(p.policy, of.Key)
	if of == id {
		p.buckets = append(p.buckets, b)
	}
	return b
}

// bucketClosed runs with a lock of the cache held, in the middle of a step.
func (p *process) bucketClosed(b *bucket) { b.closed = true }

// forget drops closed buckets.
func (p *process) forget() {
	open := p.buckets[:0]
	for _, b := range p.buckets {
		if b.closed {
			b.checkDebt()
			p.released.Add(b.Stats())
			for _, t := range b.takings {
				if t.from != local.FromFallback {
					p.late = append(p.late, t)
				}
			}
			p.late = p.late[max(len(p.late)-maxTakings, 0):]
		} else {
			open = append(open, b)
		}
	}
	p.buckets = open
}

// current returns the bucket that a request finds.
func (p *process) current() *bucket {
	b := p.cache.Get(p.now(), id)
	b.evicted = false
	return b
}

// maxWaiters bounds the waiters of a bucket.
const maxWaiters = 3

// ask makes a request for n tokens that read the clock at now. late says that it slept since.
func (p *process) ask(now time.Duration, n int64, late bool) bool {
	b := p.current()
	if n > p.policy.Cap || len(b.waiters) >= maxWaiters {
		return false
	}
	event := -1 // now
	if live, _ := b.Bucket.Peek(p.now()); late && live < n {
		event = p.stale.event // it may take what has ended meanwhile: then it counts as of when that was valid
	}
	if late {
		p.stale = nil
	}
	t := taking{n: n, from: local.FromLease, gen: b.Generation(), event: event, stamp: b.Hot().LastStamp()}
	if _, ok, renew := b.Hot().Take(now, n); ok {
		b.admit(t)
		if renew {
			b.apply(b.Renew(now))
		}
		return true
	}
	wait := &waitingRequest{waiter: local.NewWaiter(), n: n, gen: t.gen, since: p.seq}
	v, effect := b.Bucket.Ask(now, n, now+p.policy.Budget, wait.waiter)
	b.apply(effect)
	switch v.Reason {
	case local.Waiting:
		b.waiters = append(b.waiters, wait)
	case local.Granted:
		t.stamp = wait.waiter.Stamp
		b.admit(t)
	case local.Unavailable:
		b.fallback(n)
	case local.Limited:
	default:
		p.world.Failf("%s: asked for %d, outcome %d", p.id, n, v.Reason)
	}
	return true
}

// leave makes the oldest waiter give up.
func (p *process) leave() bool {
	for _, b := range p.buckets {
		if len(b.waiters) == 0 {
			continue
		}
		first := b.waiters[0]
		b.waiters = b.waiters[1:]
		if !b.Bucket.Leave(first.waiter) {
			p.world.Failf("%s: a waiter without a verdict is not in line", p.id)
		}
		return true
	}
	return false
}

// giveBack refunds up to most tokens of the n-th request that was admitted.
func (p *process) giveBack(n int, most int64) bool {
	var all []*taking
	for _, b := range p.buckets {
		all = append(all, b.takings...)
	}
	i, ok := indexOf(len(all)+len(p.late), n)
	switch {
	case !ok:
		return false
	case i < len(all):
		all[i].bucket.giveBack(all[i], min(most, all[i].n))
	default:
		t := p.late[i-len(all)]
		p.giveBackLate(t, min(most, t.n))
	}
	return true
}

func (p *process) owe(n int64) bool {
	b := p.current()
	if p.world.scope.Lossless && p.world.owed+n > p.policy.Cap/4 {
		return false // debt below the floor is forgiven, and not accounted for
	}
	e, taken, forgiven, ok := b.Charge(p.now(), n)
	owed := n - taken - forgiven
	p.world.owed += owed
	b.debt += owed
	b.spent += taken
	if !ok {
		p.world.Failf("%s: the bucket in use is closed", p.id)
	}
	b.apply(e)
	return true
}

// credit makes a request for n tokens that are given, or a reset. A bucket has one at a time.
func (p *process) credit(n int64) bool {
	b := p.current()
	if b.crediting != nil || p.world.scope.Lossless {
		return false
	}
	b.crediting = local.NewWaiter()
	_, e := b.Bucket.Credit(b.crediting, n)
	b.apply(e)
	return true
}

// evict makes the cache evict the key. With burn there is no room for buckets that are closing.
func (p *process) evict(burn bool) bool {
	b, ok := p.cache.Find(id)
	if !ok {
		return false
	}
	now := p.now()
	b.evicted = true
	p.cache.Get(now, other)
	if left, ok := p.cache.Find(id); burn && ok && left == b {
		b.Bucket.Burn(now)
		b.failed()
		b.queued, b.checkAt = false, 0
		p.cache.Forget(now, b)
		b.collect(nil)
	}
	return true
}

// crash ends the process with all that it holds, and starts another in its place.
func (p *process) crash() {
	w := p.world
	for _, b := range p.buckets {
		if b.call != nil {
			b.call.givenUp = true
		}
	}
	p.buckets, p.world = nil, nil
	w.processes[p.number] = w.start(p.number)
	w.processes[p.number].variant = p.variant
	if w.scope.Warm {
		w.processes[p.number].warm()
	}
}

// change gives a process the limits of process n, as a deploy does. The bound is that of the
// largest limits in use.
func (p *process) change(n int) {
	w := p.world
	p.variant = n
	p.policy = w.scope.policy(n, w.deployed, w.uniform)
	w.policies[p.number] = p.policy
	for _, b := range append([]*bucket(nil), p.buckets...) {
		was := b.Policy()
		_, e, _ := b.SetPolicy(p.now(), nil, p.policy)
		b.outgrown(was)
		b.shared = nil
		b.apply(e)
		b.collect(nil)
	}
}

// outgrown checks that no token is left that was leased under a larger limit.
func (b *bucket) outgrown(was *local.Policy) {
	w := b.process.world
	before, now := &was.Call, &b.Policy().Call
	if held, _ := b.Peek(b.process.now()); held > 0 && (now.Cap < before.Cap || w.rate(now) < w.rate(before)) {
		w.Failf("%s holds %d tokens of a limit that was lowered", b.process.id, held)
	}
}

// rate returns that of a call's first limit, tokens per µs.
func (w *World) rate(c *lua.Call) float64 {
	switch w.scope.Algorithm {
	case lua.SlidingWindow:
		return float64(c.Cap) / float64((c.Span-1)*c.Period)
	case lua.FixedWindow:
		return float64(c.Cap) / float64(c.Period)
	default:
		return float64(c.Tokens) / float64(c.Period)
	}
}

// deploy gives everybody limits that were not there before. They hold from now on. What processes
// hold, are being granted, or may still cancel was not counted by them.
func (w *World) deploy() bool {
	if w.deployed || len(w.scope.Later) == 0 {
		return false
	}
	w.deployed = true
	known := len(w.limits)
	for i := range w.scope.Bursts {
		w.addLimits(w.scope.limits(i, true))
	}
	cost := int64(0)
	for _, p := range w.processes {
		cost += p.holds()
		for _, t := range p.late {
			cost += t.n
		}
		for _, b := range p.buckets {
			for _, t := range b.takings {
				if t.from == local.FromRedis { // holds has the others
					cost += t.n
				}
			}
			for _, part := range b.refunding {
				cost += part.n
			}
		}
		p.change(p.variant)
	}
	for _, r := range w.state.Records { // their settlement takes them off limits that did not count them
		cost += r.Out
	}
	for _, r := range w.requests {
		cost += r.call.Want + r.call.Refund
	}
	for _, l := range w.limits[known:] {
		l.from, l.conceded = len(w.admissions.events), cost
	}
	w.Logf("conceded in the new limits: %d", cost)
	return true
}
