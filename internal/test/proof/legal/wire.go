package legal

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/manynodes"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// network is the present disturbances of the messages between processes and store.
type network struct {
	loss   int           // percent of the messages, each way
	slow   time.Duration // the most by which each way takes longer
	far    time.Duration // by how much it does so at least
	repeat bool          // every other request arrives twice
	down   bool          // the store refuses connections
	hangs  bool          // it accepts them, and does not answer
}

// wire connects a process to the store. It reports to the player what the store did. It is also a
// simulated store of package tiered: randomness, and the order of simultaneous events, follow from
// the plan.
type wire struct {
	remote.Store
	player  *player
	process *process
	lane    time.Duration // lane of its messages' arrival, in ns; no other process has it
	salt    uint64

	censuses map[remote.Node]remote.Census // the last that its process was told; guarded by player.mu

	mu      sync.Mutex
	dead    bool
	net     network
	entropy uint64
	last    time.Duration // last instant of Random
	drawn   uint64        // numbers drawn at that instant
}

// RestsUntil lets a long time before the first step pass at once.
func (w *wire) RestsUntil() time.Time { return w.player.base.Add(w.player.plan.rest()) }

// rest is until when processes rest.
func (p *Plan) rest() time.Duration { return p.Warm - 2*time.Minute }

// mix returns a hash of numbers, the same in every run.
func mix(all ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, x := range all {
		h ^= x
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// hashText returns a hash of a text, the same in every run.
func hashText(s string) uint64 {
	h := uint64(0xcbf29ce484222325) // FNV
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// KeepsTimeout is that of [remote.KeepsTimeout].
func (w *wire) KeepsTimeout() bool { return w.player.plan.Carried }

// Entropy returns the random bits of lease ids and salts.
func (w *wire) Entropy() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entropy++
	return mix(w.salt, 1, w.entropy)
}

// Yield lets everything else happen that is due now. Each waiter continues at an instant of its
// own, by its order. A sender has order 0 and a lane of its own: what is due by then leaves
// together.
func (w *wire) Yield(order uint64) {
	if order == 0 {
		time.Sleep(time.Nanosecond)
		w.player.enter(450)
		return
	}
	time.Sleep(1 + time.Duration(order%1000))
}

// Sends records the key of a call's bucket.
func (w *wire) Sends(_ time.Duration, c *lua.Call, b *local.Bucket) {
	w.player.names(c.Bucket, b.Policy().Number, b.ID().Key)
}

// Random is [tiered.Options].Random. The number depends on the instant, and not on the number of
// draws before it.
func (w *wire) Random() float64 {
	now := w.player.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now != w.last {
		w.last, w.drawn = now, 0
	}
	w.drawn++
	return float64(mix(w.salt, 2, uint64(now), w.drawn)>>11) / (1 << 53)
}

// dice returns a random number for a property of a message.
func (w *wire) dice(c *lua.Call, what uint64) uint64 {
	return mix(w.salt, 3, hashText(c.Bucket), uint64(c.Seq), what)
}

// state returns the present disturbances, and whether the process is dead.
func (w *wire) state() (network, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.net
	n.down = n.down || w.player.withoutNode()
	return n, w.dead
}

// arrive sleeps for way and while the store stands still, and then until an instant in a lane.
func (w *wire) arrive(lane, way time.Duration) {
	time.Sleep(way)
	time.Sleep(time.Duration(w.player.still.Load()) - w.player.now())
	w.player.enter(lane)
}

// laneAt returns the lane of the process' messages at a node: its own, or one beside it for each of
// several nodes.
func (w *wire) laneAt(node remote.Node) time.Duration {
	if !w.player.several() {
		return w.lane
	}
	return w.lane + time.Duration(10*max(slices.Index(manynodes.Names(mostNodes), node), 0))
}

// way returns how long a message takes one way.
func (w *wire) way(n network, dice uint64) time.Duration {
	d := w.player.plan.Trip/4 + time.Duration(dice%uint64(w.player.plan.Trip/2))
	d += n.far
	if n.slow > 0 {
		d += time.Duration(mix(dice) % uint64(n.slow))
	}
	return d
}

var errDead = errors.New("legal: the process is dead")

// Run is a round trip. Calls are executed when the request arrives, even if nobody waits any more.
func (w *wire) Run(_ context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	n, dead := w.state()
	first, sent := calls[0], w.player.now()
	lane := w.laneAt(w.Node(first.Bucket))
	switch {
	case dead:
		fail(results[:len(calls)], errDead)
		return
	case n.down && !n.hangs:
		w.arrive(lane, w.player.plan.Trip)
		fail(results[:len(calls)], io.EOF)
		return
	}
	there, back := w.way(n, w.dice(&first, 1)), w.way(n, w.dice(&first, 2))
	lost := func(what uint64) bool { return int(w.dice(&first, what)%100) < n.loss }
	mine := append([]lua.Call(nil), calls...) // the caller may have left when they arrive
	done := make(chan []remote.Result, 1)
	w.player.background(func() {
		if n.down || lost(3) {
			return
		}
		w.arrive(lane, there)
		answers := w.execute(sent, mine)
		if n.repeat && w.dice(&first, 4)%2 == 0 {
			w.player.background(func() {
				w.arrive(lane, time.Duration(w.dice(&first, 5)%uint64(2*second)))
				w.execute(sent, mine)
			})
		}
		if !lost(6) && answers != nil {
			time.Sleep(back)
			w.player.enter(lane - 40) // no arrival has this lane
			done <- answers
		}
	})
	timer := time.NewTimer(timeout + time.Duration(1+w.dice(&first, 7)%1000)) // the Group's own timer ends first
	defer timer.Stop()
	select {
	case answers := <-done:
		copy(results, answers)
	case <-timer.C:
		fail(results[:len(calls)], context.DeadlineExceeded)
	}
}

// execute makes the store execute calls. It returns nil if the store is down by now.
func (w *wire) execute(sent time.Duration, calls []lua.Call) []remote.Result {
	if n, dead := w.state(); n.down || dead {
		return nil
	}
	w.tick()
	results := make([]remote.Result, len(calls))
	w.Store.Run(context.Background(), 10*second, calls, results)
	w.player.executed(w, sent, calls, results)
	return results
}

// tick has the clock of a backend that was set go on.
func (w *wire) tick() {
	if tick := w.player.backend.Tick; tick != nil {
		tick()
	}
}

func fail(results []remote.Result, err error) {
	for i := range results {
		results[i] = remote.Result{Err: err}
	}
}

// Presence is a message like the others.
func (w *wire) Presence(
	ctx context.Context, timeout time.Duration, node remote.Node, p remote.Process,
) (remote.Census, error) {
	n, dead := w.state()
	dice := mix(w.salt, 4, uint64(w.player.now()))
	if w.player.several() {
		dice = mix(dice, hashText(string(node)))
	}
	switch {
	case dead:
		return remote.Census{}, errDead
	case n.down, int(dice%100) < n.loss:
		time.Sleep(timeout)
		return remote.Census{}, context.DeadlineExceeded
	}
	type answer struct {
		remote.Census
		err error
	}
	if n.far == 0 {
		n.slow = 0
	}
	done := make(chan answer, 1)
	w.player.background(func() { // it is executed even if nobody waits any more
		w.arrive(w.laneAt(node), w.way(n, mix(dice, 1)))
		w.tick() // the standing shares go by the server's clock too
		c, err := w.Store.Presence(context.WithoutCancel(ctx), timeout, node, p)
		if err != nil && !errors.Is(err, remote.ErrNoPresence) && (!w.player.plan.Real || watch.Refused(err)) {
			w.player.faultf("health", "the store refuses a presence: %v", err)
		}
		time.Sleep(w.way(n, mix(dice, 2)))
		done <- answer{c, err}
	})
	timer := time.NewTimer(timeout + time.Duration(1+mix(dice, 4)%1000))
	defer timer.Stop()
	select {
	case a := <-done:
		if int(mix(dice, 3)%100) < n.loss {
			time.Sleep(timeout)
			return remote.Census{}, context.DeadlineExceeded
		}
		if a.err == nil {
			w.counted(node, a.Census)
		}
		return a.Census, a.err
	case <-timer.C:
	case <-ctx.Done():
	}
	return remote.Census{}, context.DeadlineExceeded
}

// Locate is a message like the others, unless the process has the map.
func (w *wire) Locate(ctx context.Context, bucket string) (remote.Node, error) {
	if id := w.Store.Node(bucket); id != "" {
		return id, nil
	}
	n, dead := w.state()
	dice := mix(w.salt, 6, hashText(bucket), uint64(w.player.now()))
	switch {
	case dead:
		return "", errDead
	case n.down && !n.hangs:
		w.arrive(w.lane, w.player.plan.Trip)
		return "", io.EOF
	case n.down, int(dice%100) < n.loss:
		<-ctx.Done()
		return "", ctx.Err()
	}
	there, back := w.way(n, mix(dice, 1)), w.way(n, mix(dice, 2))
	if end, ok := ctx.Deadline(); ok && there+back+time.Microsecond > time.Until(end) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	w.arrive(w.lane, there)
	id, err := w.Store.Locate(ctx, bucket)
	time.Sleep(back)
	return id, err
}

// leasing gives a plan an ordinary policy that is leased.
func (d *drawer) leasing(p *Plan) {
	p.only(Rough, tiered.Policy{
		Algorithm: pick(d, tiered.TokenBucket, tiered.FixedWindow, tiered.SlidingWindow), FailMode: tiered.FailMode(d.IntN(3)),
		Limit: tiered.Limit{Tokens: pick(d, int64(1000), 10_000), Per: pick(d, second, time.Minute, time.Minute, time.Hour)},
	})
}

// far draws a store that answers late: after more than Timeout and in less than a second, and up to
// twice as late at one time as at another. So it answers many calls that were given up.
func (d *drawer) far(p *Plan) []Step {
	who, which, key := d.IntN(p.Processes), d.IntN(len(p.Policies)), d.IntN(keys)
	scene := []Step{
		{Verb: Far, After: pick(d, 0, second, 20*second), Pause: pick(d, 15*ms, 30*ms, 60*ms, 120*ms, 220*ms)},
		{Verb: Steady, Who: who, Which: which, Key: key, N: 5 + d.IntN(16)},
	}
	if d.one(2) {
		scene = append(scene, Step{Verb: Well})
	}
	return scene
}

// steady asks for a key N times a second, for less than it has. If the store only answers late,
// then after a while it decides nearly all: leases are there in time.
func (p *process) steady(s *Step) {
	const (
		ready  = 14 * second
		length = 8 * second
		least  = 0.8
	)
	w, x := p.player, p.player.plan.Policies[s.Which]
	if w.plan.Thin || w.plan.Real {
		return
	}
	start, asked, decided := w.now(), 0, 0
	for w.now()-start < ready+length {
		d := p.one(s)
		if w.now()-start > ready {
			if asked++; d.Tier != tiered.Failover {
				decided++
			}
		}
		time.Sleep(second / time.Duration(s.N))
	}
	n, _ := p.wire.state()
	onlyFar := n == network{slow: n.far, far: n.far}
	// A window that ends within a second or two is over before a lease that was asked for in it is
	// there. Of a small quota little or nothing is leased, because a killed process burns it.
	leased := (x.Limit.Calendar.IsZero() || x.Limit.Tokens >= 10_000) && single(x.Limit) && x.Lease == (tiered.Lease{}) && x.Algorithm != tiered.SlidingLog &&
		(x.Algorithm == tiered.TokenBucket && burst(x.Limit) >= 1000 || x.Algorithm != tiered.TokenBucket && perOf(x.Limit) >= time.Minute)
	b, used := w.histories[s.Which][s.Key], int64(0)
	w.mu.Lock()
	for _, x := range b.spent {
		used += x.n
	}
	// Who asked for much at once is thought to do so again, for some calls: a lease would hold few
	// such requests.
	cheap := b.dearest <= 10
	little := x.Limit.Tokens >= 1000 && used < x.Limit.Tokens*3/4 && len(b.open) == len(w.slots) && len(b.terms) == len(w.slots)
	w.mu.Unlock()
	if onlyFar && leased && little && cheap && float64(decided) < least*float64(asked) {
		w.faultf("recovery", "policy %d, key %d: Redis decided %d of %d requests, and it answers, after %v to %v", s.Which, s.Key, decided,
			asked, 2*n.far, 4*n.far)
	}
}
