package adversary

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// World is a fleet of processes, a bucket that they share, and everything between them. It is
// single-threaded and has no clock: what it does follows from its scope, its seed and the choices
// alone.
type World struct {
	Journal

	scope    *Scope
	store    *Store
	bucket   string // its name in the store
	uniform  func() float64
	policies []*local.Policy // of each process, at present
	rule     rule
	limits   []*limit
	deployed bool              // the limits of Scope.Later are in use
	began    map[lua.Limit]int // of versions: the admissions before a limit was first counted

	now      time.Duration // real time, the same for all
	offset   time.Duration // of the server's clock, from real time
	setBacks time.Duration // sum of all set-backs of the server's clock
	keyEnd   int64         // ms of the server's clock after which the bucket has expired; 0: it does not exist

	processes []*process
	started   int // number of processes so far
	requests  []*request
	replies   []*reply

	replica *Store // a copy of what the server held

	admissions admissions
	cameBack   []comeback // to a bucket that refills
	window     int64      // a fixed one's: the last that was written in, or in which a segment began
	segment    int        // see fixedRule
	segments   int        // so far
	forgotten  int        // admissions before the last reset of a window
	strayed    int64      // refunds of what a fixed window no longer counts, because the clock was set back
	written    int        // the segment in which the bucket was last written
	state      state      // of the bucket, as last written
	damaged    bool       // an assumption was broken: see concede
	owed       int64      // charged by Owe
	calls      int        // executed

	// Tokens that no process knows of, for lossless scopes.
	takenByOutsiders int64 // taken by outsiders
	undelivered      int64 // granted directly by replies that no process accepted
	credited         int64 // refunds that were credited by calls that no process saw answered
}

// epoch is the server's time at the start, µs since 1970: 16 digits, as in production.
const epoch = int64(1_763_640_000_000_000)

// New returns a world at its start. The seed decides the processes' jitter; 0 means none. bucket is
// its name in the store, which may hold others.
func New(s *Scope, bank *Store, bucket string, seed uint64) *World {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &World{began: map[lua.Limit]int{}, scope: s, store: bank, bucket: bucket, uniform: r.Float64}
	if seed == 0 {
		w.uniform = func() float64 { return 0.5 }
	}
	w.rule = ruleOf(s)
	for i := range s.Bursts {
		w.policies = append(w.policies, s.policy(i, false, w.uniform))
		if s.Versions == nil {
			w.addLimits(s.limits(i, false))
		}
	}
	if s.Versions != nil {
		w.addLimits([]lua.Limit{s.commonLimit()})
	}
	w.updateSegment()
	for i := range s.Bursts {
		w.processes = append(w.processes, w.start(i))
	}
	if s.Warm {
		for _, p := range w.processes {
			p.warm()
		}
	}
	return w
}

// warm gives the process a demand of many tokens a millisecond.
func (p *process) warm() {
	b, w := p.current(), p.world
	for range 8 {
		b.Bucket.ByFailMode(p.now(), p.policy.Cap, 1) // refused: demand counts what was asked for
		w.now += time.Millisecond
		b.send()
	}
}

// server reads the server's clock, µs.
func (w *World) server() int64 { return epoch + (w.now + w.offset).Microseconds() }

// advance lets time pass.
func (w *World) advance(d time.Duration) {
	w.now += max(d.Truncate(time.Microsecond), time.Microsecond)
	w.updateSegment()
	w.Logf("%v", w.now)
}

// advanceToEdge advances to the next end: of a lease's record, of the time within which a request
// is wanted, or of a window. off is added; at the instant itself it is over.
func (w *World) advanceToEdge(off time.Duration) bool {
	server := w.server()
	next := int64(0)
	consider := func(t int64) {
		if d := t - server; d > 0 && (next == 0 || d < next) {
			next = d
		}
	}
	for _, r := range w.state.Records {
		consider(r.End - w.state.Behind)
	}
	for _, r := range w.requests {
		consider(r.call.Deadline)
	}
	if w.scope.windows() {
		for _, l := range w.limits {
			consider(w.scope.Phase.Microseconds() + (w.blockOf(l, server)+1)*l.Period)
		}
	}
	if next == 0 || time.Duration(next)*time.Microsecond+off <= 0 {
		return false
	}
	w.advance(time.Duration(next)*time.Microsecond + off)
	return true
}

// setBack sets the server's clock back. A refund with copies under way could then count twice. That
// is conceded: no refund under way takes effect.
func (w *World) setBack(d time.Duration) {
	w.offset -= d
	w.setBacks += d
	w.revertSegment()
	for _, r := range w.requests {
		if r.call.Refund > 0 {
			r.ignored = true
		}
	}
}

// jump sets the server's clock ahead. A bucket credits the time once, a window ends early, and
// leases end at the server before they end in the process.
func (w *World) jump(d time.Duration) {
	w.offset += d
	w.concede(func(l *limit) int64 {
		if w.scope.windows() {
			return l.Cap
		}
		return min(l.Cap, int64(float64(d)*float64(l.Tokens)/float64(w.scope.length(l.Limit)))+1)
	})
}

// concedeUncovered concedes what a jump of the clock leaves to processes whose leases ended early
// at the server. The refill of the jump pays for it, but a Reset fills that room at once.
func (w *World) concedeUncovered() {
	if !w.damaged {
		return
	}
	for _, p := range w.processes {
		if extra := p.holds() - w.covered(p); extra > 0 {
			w.concede(tokens(extra))
		}
	}
}

// vanish deletes the bucket. The next call finds a full one.
func (w *World) vanish() bool {
	if !w.state.Exists {
		return false
	}
	w.lose()
	w.concede((*limit).all)
	return true
}

func (w *World) lose() {
	w.store.Remove(w.bucket)
	w.state, w.keyEnd = state{}, 0
}

// concede notes that an assumption was broken, and what it may cost each limit.
func (w *World) concede(cost func(*limit) int64) {
	for i, l := range w.limits {
		n := cost(l)
		l.conceded += n
		w.damaged = w.damaged || n > 0
		w.Logf("conceded in limit %d: %d", i+1, n)
	}
}

// tokens is a cost of n tokens for every limit.
func tokens(n int64) func(*limit) int64 { return func(*limit) int64 { return n } }

// Verb is a kind of thing that happens.
type Verb uint8

// The verbs. Who is a process; N says how much, or which: 0 the oldest, 1 the next, -1 the newest.
const (
	Ask       Verb = iota // Who is asked for N tokens
	ReadClock             // a request of Who reads the clock, and sleeps
	AskStale              // it wakes up, and asks for N tokens as of then
	Rush                  // Who is asked for a burst that it refuses without asking, so that demand is high
	Leave                 // the one who waits longest at Who gives up
	Cancel                // tokens that Who admitted are given back, all of one request; N as above
	Trim                  // one token of them
	Owe                   // a request of Who turned out to have cost N more
	Reset                 // an operator has Who fill the bucket
	Give                  // an operator has Who give N tokens to it

	Send    // a call of Who that is due leaves; N as above
	GiveUp  // Who gives up the call under way, N as above: it timed out or its connection broke
	Drop    // Who's breaker is open: what is due is not sent
	Probe   // Who's breaker wants a call
	Look    // Who's timer goes off
	Evict   // Who's cache needs the room
	Burn    // and it has none for those who leave
	Suspend // Who notices that its machine was suspended, or believes it
	Freeze  // Who's machine is suspended for N percent of a lease, its clock too, and nobody notices
	Clone   // Who's machine is copied, and the copy runs on beside it, in place of another process
	Crash   // Who dies, and another process takes its place
	Change  // Who is told another limit: that of process N
	Guess   // Who's idea of the server's clock is wrong by N quarters of a lease
	Lag     // Who's round trips take N ms from now on, so that it wants longer or shorter leases

	Execute // a request arrives, N as above
	Repeat  // it arrives, and will arrive again
	Lose    // it never arrives
	Deliver // a reply arrives, N as above
	Echo    // it arrives, and will arrive again
	Cut     // it never arrives

	Flow     // a good moment: all that is due is sent, arrives, and is answered
	Outsider // somebody else takes N tokens directly, 0 for all there are
	Wait     // time passes: N percent of a lease
	Edge     // time passes until something ends: to the very instant, plus N µs
	Back     // the server's clock is set back by N ms
	Forward  // the server's clock jumps ahead by N ms
	Vanish   // the server loses the bucket
	Copy     // a replica takes over what the server holds; it is not heard of again until
	Promote  // it is the server, without what was written since
	Deploy   // everybody is told one more limit
)

// verbs are what the verbs are called, and what they do. do reports whether that was possible.
var verbs = [...]struct {
	name string
	do   func(w *World, who, n int) bool
}{
	Ask:       {"ask", of(func(p *process, n int) bool { return p.ask(p.now(), int64(n), false) })},
	ReadClock: {"read clock", always(func(p *process, _ int) { p.stale = &stale{now: p.now(), event: p.world.newEvent()} })},
	AskStale:  {"ask stale", of(func(p *process, n int) bool { return p.stale != nil && p.ask(p.stale.now, int64(n), true) })},
	Rush:      {"rush", always(func(p *process, _ int) { p.current().fallback(p.policy.Cap) })},
	Leave:     {"leave", of(func(p *process, _ int) bool { return p.leave() })},
	Cancel:    {"cancel", of(func(p *process, n int) bool { return p.giveBack(n, 1<<40) })},
	Trim:      {"trim", of(func(p *process, n int) bool { return p.giveBack(n, 1) })},
	Owe:       {"owe", of(func(p *process, n int) bool { return p.owe(int64(n)) })},
	Reset:     {"reset", of(func(p *process, _ int) bool { return p.credit(local.Fill) })},
	Give: {"give", of(func(p *process, n int) bool {
		return !p.world.scope.Algorithm.Has(lua.Window) && p.credit(int64(n)) // a window has no tokens
	})},

	Send:    {"send", ofBucket(isQueued, (*bucket).send)},
	GiveUp:  {"give up", ofBucket(func(b *bucket) bool { return b.call != nil }, (*bucket).giveUp)},
	Drop:    {"drop", ofBucket(isQueued, (*bucket).drop)},
	Probe:   {"probe", always(func(p *process, _ int) { p.current().apply(p.current().Probe()) })},
	Look:    {"look", ofBucket(isDue, (*bucket).look)},
	Evict:   {"evict", of(func(p *process, _ int) bool { return p.evict(false) })},
	Burn:    {"burn", of(func(p *process, _ int) bool { return p.evict(true) })},
	Suspend: {"suspend", always(func(p *process, _ int) { p.wake() })},
	Freeze: {"freeze", always(func(p *process, n int) {
		p.freeze(p.world.scope.longestLease() / 100 * time.Duration(n))
	})},
	Clone:  {"clone", of(func(p *process, _ int) bool { return p.clone() })},
	Crash:  {"crash", always(func(p *process, _ int) { p.crash() })},
	Change: {"change", always((*process).change)},
	Guess:  {"guess", always(func(p *process, n int) { p.clockError = p.world.scope.longestLease() / 4 * time.Duration(n) })},
	Lag:    {"lag", always(func(p *process, n int) { p.roundTrip = time.Duration(n) * time.Millisecond })},

	Execute: {"execute", arrives(false, false)},
	Repeat:  {"repeat", arrives(true, false)},
	Lose:    {"lose", arrives(false, true)},
	Deliver: {"deliver", isHeard(false, false)},
	Echo:    {"echo", isHeard(true, false)},
	Cut:     {"cut", isHeard(false, true)},

	Flow:     {"flow", happens(func(w *World, _ int) { w.flow() })},
	Outsider: {"outsider", happens(func(w *World, n int) { w.outsider(int64(n)) })},
	Wait:     {"wait", happens(func(w *World, n int) { w.advance(w.scope.longestLease() / 100 * time.Duration(n)) })},
	Edge:     {"edge", func(w *World, _, n int) bool { return w.advanceToEdge(time.Duration(n) * time.Microsecond) }},
	Back:     {"back", happens(func(w *World, n int) { w.setBack(time.Duration(n) * time.Millisecond) })},
	Forward:  {"forward", happens(func(w *World, n int) { w.jump(time.Duration(n) * time.Millisecond) })},
	Vanish:   {"vanish", func(w *World, _, _ int) bool { return w.vanish() }},
	Copy:     {"copy", func(w *World, _, _ int) bool { return w.copyBucket() }},
	Promote:  {"promote", func(w *World, _, _ int) bool { return w.promote() }},
	Deploy:   {"deploy", func(w *World, _, _ int) bool { return w.deploy() }},
}

// of is what a process does.
func of(do func(p *process, n int) bool) func(*World, int, int) bool {
	return func(w *World, who, n int) bool { return do(w.processes[who], n) }
}

// always is what it can always do.
func always(do func(p *process, n int)) func(*World, int, int) bool {
	return of(func(p *process, n int) bool { do(p, n); return true })
}

// happens is what can always happen.
func happens(do func(w *World, n int)) func(*World, int, int) bool {
	return func(w *World, _, n int) bool { do(w, n); return true }
}

// ofBucket is what a process does with the n-th of its buckets that can.
func ofBucket(can func(*bucket) bool, do func(*bucket)) func(*World, int, int) bool {
	return of(func(p *process, n int) bool {
		able := slices.DeleteFunc(slices.Clone(p.buckets), func(b *bucket) bool { return !can(b) })
		i, ok := indexOf(len(able), n)
		if ok {
			do(able[i])
		}
		return ok
	})
}

func isQueued(b *bucket) bool { return b.queued }
func isDue(b *bucket) bool    { return b.checkAt > 0 && b.checkAt <= b.process.now() }

// arrives is what the network does with the n-th request, and isHeard with the n-th reply.
func arrives(again, lost bool) func(*World, int, int) bool {
	return func(w *World, _, n int) bool {
		r, ok := pull(&w.requests, n, again)
		if ok && !lost {
			w.execute(r)
		}
		return ok
	}
}

func isHeard(again, lost bool) func(*World, int, int) bool {
	return func(w *World, _, n int) bool {
		r, ok := pull(&w.replies, n, again)
		if ok && !lost {
			r.to.process.deliver(r)
		}
		return ok
	}
}

// pull takes the n-th message from the network. If it is to arrive again, a copy stays, unless it
// has arrived too often.
func pull[M interface{ copies() *int }](all *[]M, n int, again bool) (m M, ok bool) {
	i, ok := indexOf(len(*all), n)
	if !ok {
		return m, false
	}
	if m = (*all)[i]; !again {
		*all = append((*all)[:i:i], (*all)[i+1:]...)
		return m, true
	}
	*m.copies()++
	return m, *m.copies() <= maxCopies
}

// maxCopies is how often one message may arrive before its last copy.
const maxCopies = 2

func (r *request) copies() *int { return &r.repeated }
func (r *reply) copies() *int   { return &r.repeated }

// indexOf returns the index of the n-th of count; -1 is the last.
func indexOf(count, n int) (int, bool) {
	if n < 0 {
		n += count
	}
	return n, n >= 0 && n < count
}

func (v Verb) String() string { return verbs[v].name }

// Action is one thing that can happen in a world.
type Action struct {
	Verb Verb
	Who  int
	N    int
}

func (a Action) String() string {
	if a.Verb >= Execute {
		return fmt.Sprintf("%v %d", a.Verb, a.N)
	}
	return fmt.Sprintf("%c %v %d", 'A'+rune(a.Who), a.Verb, a.N)
}

// Do makes a happen, and reports whether it was possible.
func (w *World) Do(a Action) bool {
	ok := verbs[a.Verb].do(w, a.Who, a.N)
	if ok {
		w.check()
	}
	return ok
}
