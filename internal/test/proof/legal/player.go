package legal

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/watch"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// keys is the number of keys that policies are asked for, besides those that only evict others.
const keys = 2

// player plays a plan. It must run in a bubble, unless its store is a real one.
type player struct {
	plan    *Plan
	backend *Backend
	base    time.Time
	slots   []*process
	gone    []*process // crashed, or replaced
	born    uint64

	others, streams sync.WaitGroup // goroutines: messages, and requests in the background
	busy            atomic.Int64   // number of requests in the background
	still           atomic.Int64   // until when the store stands still, ns
	mu              sync.Mutex
	histories       [][]*history // by policy and key
	buckets         map[string]*history
	reservations    []*reservation
	burnt           []int64                 // by policy
	vanished, ends  bool                    // a bucket was lost; the disturbances have ended
	moved, ahead    bool                    // the clock was set; the clock was set ahead
	reloaded        map[int]time.Duration   // when a process last began or ended to be without a policy, by policy
	lanes           time.Duration           // of requests in the background, so far
	lent            map[string]*lent        // by bucket
	entries         map[int]map[*entry]bool // by key
	faults          []Fault
	narrated        bool
	at              int // the present step
	story           strings.Builder
}

// Fault is a violation. Kind is over, fallback, late, under, health, recovery, requests, loss,
// shares, places, told or hook.
type Fault struct {
	Kind, Text string
}

func (f Fault) String() string { return f.Kind + ": " + f.Text }

// process is one process of the fleet.
type process struct {
	player   *player
	slot     int
	wire     *wire
	group    *tiered.Group
	limiters []*tiered.Limiter
	places   places
	rules    [][]tiered.Limit // results of PerKey, by policy and key; guarded by player.mu
	counts   []counts         // of requests, by policy; guarded by player.mu
	failures []*failures      // of Redis, by policy; guarded by player.mu
	opened   time.Duration
	leaves   bool            // it is being closed or killed; guarded by player.mu
	agreed   map[string]bool // whether the standing shares of a policy are used; guarded by player.mu
}

// counts are the requests of a policy in a process, as the plan saw them.
type counts struct {
	admitted, refused int64
	byRedis           int64 // of both
	unsure            bool  // some refusals are not known: of requests over several keys, and of those that wait
	parts             bool  // some requests took parts of what they asked, and each part counts
	tokens            int64 // of those that were admitted, and what was charged afterwards
	alone             int64 // of tokens: by fail modes, except of requests over several keys and of those that wait
	dearer            bool  // some requests cost more in the end: without a limit that is not counted
	vague             bool  // some tokens are not known
}

// count counts a request.
func (c *counts) count(d *tiered.Decision, cost int64) {
	if d.Allowed {
		c.admitted++
		c.tokens += cost
		if d.Tier == tiered.Failover && d.Reason != tiered.Granted {
			c.alone += cost
		}
	} else {
		c.refused++
	}
	if d.Tier == tiered.Remote && (d.Reason == tiered.Granted || d.Reason == tiered.Limited) {
		c.byRedis++
	}
}

// Outcome is the result of a plan.
type Outcome struct {
	Faults []Fault
	Story  string // all decisions and calls, if requested
}

// Play plays a plan over a store. If tell is set, the Outcome has the story.
func (p Plan) Play(b *Backend, tell bool) Outcome {
	w := &player{
		plan: &p, backend: b, base: time.Now(), narrated: tell, buckets: make(map[string]*history), lent: make(map[string]*lent),
		burnt: make([]int64, len(p.Policies)), reloaded: make(map[int]time.Duration),
	}
	for i, x := range p.Policies {
		w.histories = append(w.histories, nil)
		for k := range keys {
			w.histories[i] = append(w.histories[i], newHistory(w.base, i, k, x, p.Options.Timeout, p.Class == Calm))
		}
	}
	w.move(&Step{N: p.Nodes})
	for i := range p.Processes {
		w.slots = append(w.slots, nil)
		w.open(i, 0, tiered.Limit{}, network{})
	}
	time.Sleep(p.Warm)
	w.checkShares(p.Warm)
	for i := range p.Steps {
		w.do(i, &p.Steps[i])
	}
	w.end()
	return Outcome{w.faults, w.story.String()}
}

// now returns the time since the beginning.
func (w *player) now() time.Duration { return time.Since(w.base) }

// enter sleeps until the next instant of a lane. Each microsecond has an instant, a number of ns,
// for each lane, so that no two things begin at the same time. Steps have lane 0, requests in the
// background up to 399, senders 450. A process' messages arrive in a lane from 500 on, and are
// answered 40 ns earlier.
func (w *player) enter(lane time.Duration) time.Duration {
	time.Sleep((lane - w.now()%1000 + 1000) % 1000)
	return w.now()
}

// background runs something that must end before the plan ends.
func (w *player) background(f func()) { w.others.Go(f) }

// meanwhile runs requests in the background while the next steps are played.
func (w *player) meanwhile(f func(lane time.Duration)) {
	w.busy.Add(1)
	w.lanes = (w.lanes + 7) % 400 // each leaves at a nanosecond of its own
	lane := w.lanes
	w.streams.Go(func() { defer w.busy.Add(-1); f(lane) })
}

func (w *player) faultf(kind, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault(kind, format, args...)
}

// fault records a fault; mu is held.
func (w *player) fault(kind, format string, args ...any) {
	f := Fault{kind, fmt.Sprintf(format, args...)}
	w.faults = append(w.faults, f)
	w.line("FAULT %v", f)
}

// line adds to the story; mu is held.
func (w *player) line(format string, args ...any) {
	if !w.narrated {
		return
	}
	fmt.Fprintf(&w.story, "%v ", w.now())
	fmt.Fprintf(&w.story, format, args...)
	w.story.WriteByte('\n')
}

func (w *player) tell(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line(format, args...)
}

func keyName(k int) string { return fmt.Sprintf("k%d", k) }

// open starts a process in a slot. If other is not zero, it is the limit of one policy.
func (w *player) open(slot, policy int, other tiered.Limit, n network) {
	p := w.start(slot, n, func(i int, x *tiered.Policy) {
		if i == policy && other != (tiered.Limit{}) {
			x.Limit = other
		}
	})
	w.mu.Lock()
	w.slots[slot] = p
	w.mu.Unlock()
	p.register()
}

// start starts a process with the plan's policies, which change may change.
func (w *player) start(slot int, n network, change func(i int, x *tiered.Policy)) *process {
	w.born++
	p := &process{player: w, slot: slot, opened: w.now(), agreed: make(map[string]bool)}
	lane := time.Duration(500 + w.born*80%400 + w.born/5%40)
	p.wire = &wire{Store: w.store(), player: w, lane: lane, process: p, salt: mix(w.plan.Seed, w.born), net: n, censuses: make(map[remote.Node]remote.Census)}
	o := w.plan.Options
	o.Random, o.Logger = p.wire.Random, slog.New(slog.DiscardHandler)
	o.Trace = &tiered.Trace{Fault: p.alarm, Standing: p.agree}
	var err error
	if p.group, err = tiered.NewGroup(p.wire, &o); err != nil {
		panic(fmt.Sprintf("legal: %v", err))
	}
	for i, x := range w.plan.Policies {
		change(i, &x)
		p.rules = append(p.rules, make([]tiered.Limit, keys))
		p.counts = append(p.counts, counts{})
		p.failures = append(p.failures, newFailures(w, x))
		if w.plan.Plans[i] {
			x.PerKey = func(key string) tiered.Limit { return p.perKey(i, key) }
		}
		l, err := p.group.NewLimiter(x)
		if err != nil {
			panic(fmt.Sprintf("legal: %v", err))
		}
		p.limiters = append(p.limiters, l)
	}
	if err := p.newPlaces(); err != nil {
		panic(fmt.Sprintf("legal: %v", err))
	}
	return p
}

func (p *process) perKey(policy int, key string) tiered.Limit {
	p.player.mu.Lock()
	defer p.player.mu.Unlock()
	for k, rule := range p.rules[policy] {
		if key == keyName(k) {
			return rule
		}
	}
	return tiered.Limit{}
}

// limit returns the present limit of a key; mu is held.
func (p *process) limit(policy, key int) tiered.Limit {
	if rule := p.rules[policy][key]; rule != (tiered.Limit{}) {
		return rule
	}
	return p.limiters[policy].Policy().Limit
}

// own returns the present limit of a step's key.
func (p *process) own(s *Step) tiered.Limit {
	p.player.mu.Lock()
	defer p.player.mu.Unlock()
	return p.limit(s.Which, s.Key)
}

// register records which limits are in force now, and how the process leases.
func (p *process) register() {
	w := p.player
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, l := range p.limiters {
		f := p.failures[i]
		f.setMode(w.now(), l.Policy().FailMode)
		for k := range keys {
			w.histories[i][k].inForce(p.slot, w.now(), p.limit(i, k))
			w.histories[i][k].leases(l.Policy().Lease)
			f.shares[k].inForce(0, w.now(), p.share(i, k))
		}
	}
}

// names records which bucket belongs to which key.
func (w *player) names(bucket string, number int, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range keys {
		if key == keyName(k) && number < len(w.histories) {
			w.buckets[bucket] = w.histories[number][k]
		}
	}
}

// executed checks and records what the store did.
func (w *player) executed(from *wire, sent time.Duration, calls []lua.Call, results []remote.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, c := range calls {
		r := results[i]
		w.line("%s seq %d lease %q want %d hold %d ret %d refund %d debt %d reset %d cap %d %d/%d: %d grant %d level %d flags %d %v",
			c.Bucket, c.Seq, c.Lease, c.Want, c.Hold, c.Ret, c.Refund, c.Debt, c.Reset, c.Cap, c.Tokens, c.Period,
			r.Reply.Code, r.Reply.Grant, r.Reply.Level, r.Reply.Flags, r.Err)
		if r.Err != nil && w.plan.Real && !watch.Refused(r.Err) {
			continue // a real network, on a machine that may be busy
		}
		if r.Err != nil {
			w.fault("health", "at %v the store refuses %+v: %v", w.now(), c, r.Err)
			continue
		}
		w.told(&c, &r.Reply)
		if b := w.buckets[c.Bucket]; b != nil && r.Reply.Code <= lua.Replay {
			b.executed(from.slot(), sent, w.now(), &c, r.Reply.Grant)
			b.calls = append(b.calls, asked{w.now(), c, r.Reply})
		}
	}
}

// slot returns the slot of the wire's process, or -1 if it was replaced.
func (w *wire) slot() int {
	for i, p := range w.player.slots {
		if p != nil && p.wire == w {
			return i
		}
	}
	return -1
}

// lent is what leases hold of one key, as the replies tell, in µs of the store's clock.
type lent struct {
	epoch int64
	ends  map[string]int64 // of the leases that hold something
}

// told judges what a caller is told whom a window refuses: no later time than the end of the first
// lease in which another process holds tokens, because by then they may be given back. It does not
// know of clocks that were set.
func (w *player) told(c *lua.Call, r *lua.Reply) {
	if c.Algorithm != lua.FixedWindow && c.Algorithm != lua.SlidingWindow || r.Code > lua.Replay || w.moved || w.plan.Real {
		return
	}
	b := w.lent[c.Bucket]
	if b == nil || b.epoch != r.Epoch {
		b = &lent{r.Epoch, make(map[string]int64)}
		w.lent[c.Bucket] = b
	}
	if f := invariant.Told(c, r, r.Now, b.ends); f.Broken() {
		w.fault("told", "at %v: %v: %+v", w.now(), f, c)
	}
	if c.Lease == "" || r.Code == lua.Replay {
		return
	}
	out := c.Hold
	if c.To == 0 {
		out += r.Grant
	}
	if delete(b.ends, c.Lease); out > 0 {
		b.ends[c.Lease] = r.Now + r.TTLLeft
	}
}

// alarm checks a report of a lost bucket. A process cannot know what others gave back, nor that
// they had a larger limit. A bucket that was filled so, and then expired, may look lost. So may a
// fixed window that ends at another time because the clock was set.
func (p *process) alarm(e tiered.Event) {
	w := p.player
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.What != "state loss" || w.vanished || w.ahead || w.plan.Real {
		return
	}
	for i, x := range w.plan.Policies {
		elsewhere := w.moved && x.Algorithm == tiered.FixedWindow
		for k, b := range w.histories[i] {
			if e.Policy == x.Name && e.Key == keyName(k) && !elsewhere && !b.filled(p) {
				w.fault("loss", "at %v policy %d, key %d: lost, and it was not", w.now(), i, k)
			}
		}
	}
}

// agree hears whether the standing shares of a policy are used.
func (p *process) agree(e tiered.Event) {
	p.player.mu.Lock()
	defer p.player.mu.Unlock()
	if e.Policy != "" {
		p.agreed[e.Policy] = e.What == "shares used"
	}
}

// disturb changes the disturbances of the network.
func (w *player) disturb(change func(*network)) {
	for _, p := range w.slots {
		p.wire.mu.Lock()
		change(&p.wire.net)
		p.wire.mu.Unlock()
	}
}
