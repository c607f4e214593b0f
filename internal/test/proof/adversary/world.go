package adversary

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// World is a fleet of processes, a bucket that they share, and everything between them. It is single-threaded and has
// no clock: what it does follows from its scope, its seed and the choices alone.
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

// New returns a world at its start. The seed decides the processes' jitter; 0 means none. bucket is its name in the
// store, which may hold others.
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
		b.Bucket.Fallback(p.now(), p.policy.Cap, 1) // refused: demand counts what was asked for
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

// advanceToEdge advances to the next end: of a lease's record, of the time within which a request is wanted, or of a
// window. off is added; at the instant itself it is over.
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

// setBack sets the server's clock back. A refund with copies under way could then count twice. That is conceded: no
// refund under way takes effect.
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

// jump sets the server's clock ahead. A bucket credits the time once, a window ends early, and leases end at the server
// before they end in the process.
func (w *World) jump(d time.Duration) {
	w.offset += d
	w.concede(func(l *limit) int64 {
		if w.scope.windows() {
			return l.Cap
		}
		return min(l.Cap, int64(float64(d)*float64(l.Tokens)/float64(w.scope.length(l.Limit)))+1)
	})
}

// concedeUncovered concedes what a jump of the clock leaves to processes whose leases ended early at the server. The
// refill of the jump pays for it, but a Reset fills that room at once.
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

var verbNames = [...]string{
	"ask", "read clock", "ask stale", "rush", "leave", "cancel", "trim", "owe", "reset", "give", "send", "give up", "drop",
	"probe", "look",
	"evict", "burn", "suspend", "freeze", "clone", "crash", "change", "guess", "lag", "execute", "repeat", "lose",
	"deliver", "echo", "cut", "flow", "outsider", "wait",
	"edge", "back", "forward", "vanish", "copy", "promote", "deploy",
}

func (v Verb) String() string { return verbNames[v] }

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
	ok := false
	if a.Verb < Execute {
		ok = w.processes[a.Who].do(a)
	} else {
		ok = w.happen(a)
	}
	if ok {
		w.check()
	}
	return ok
}

// happen does what concerns the network, the server, or time.
func (w *World) happen(a Action) bool {
	switch a.Verb {
	case Execute, Repeat, Lose:
		i, ok := indexOf(len(w.requests), a.N)
		if !ok {
			return false
		}
		r := w.requests[i]
		if a.Verb != Repeat {
			w.requests = append(w.requests[:i:i], w.requests[i+1:]...)
		} else if r.repeated++; r.repeated > maxCopies {
			return false
		}
		if a.Verb != Lose {
			w.execute(r)
		}
	case Deliver, Echo, Cut:
		i, ok := indexOf(len(w.replies), a.N)
		if !ok {
			return false
		}
		r := w.replies[i]
		if a.Verb != Echo {
			w.replies = append(w.replies[:i:i], w.replies[i+1:]...)
		} else if r.repeated++; r.repeated > maxCopies {
			return false
		}
		if a.Verb != Cut {
			r.to.process.deliver(r)
		}
	case Flow:
		w.flow()
	case Outsider:
		w.outsider(int64(a.N))
	case Wait:
		w.advance(w.scope.longestLease() / 100 * time.Duration(a.N))
	case Edge:
		return w.advanceToEdge(time.Duration(a.N) * time.Microsecond)
	case Back:
		w.setBack(time.Duration(a.N) * time.Millisecond)
	case Forward:
		w.jump(time.Duration(a.N) * time.Millisecond)
	case Vanish:
		return w.vanish()
	case Copy:
		return w.copyBucket()
	case Promote:
		return w.promote()
	case Deploy:
		return w.deploy()
	default:
		panic(fmt.Sprintf("adversary: no verb %d", a.Verb))
	}
	return true
}

// maxCopies is how often one message may arrive before its last copy.
const maxCopies = 2

// indexOf returns the index of the n-th of count; -1 is the last.
func indexOf(count, n int) (int, bool) {
	if n < 0 {
		n += count
	}
	return n, n >= 0 && n < count
}

// do does what concerns a process.
func (p *process) do(a Action) bool {
	w, now := p.world, p.now()
	switch a.Verb {
	case Ask:
		return p.ask(now, int64(a.N), false)
	case ReadClock:
		p.stale = &stale{now: now, event: w.newEvent()}
		return true
	case AskStale:
		s := p.stale
		return s != nil && p.ask(s.now, int64(a.N), true)
	case Rush:
		p.current().fallback(p.policy.Cap)
		return true
	case Leave:
		return p.leave()
	case Cancel:
		return p.giveBack(a.N, 1<<40)
	case Trim:
		return p.giveBack(a.N, 1)
	case Owe:
		return p.owe(int64(a.N))
	case Reset:
		return p.credit(func(b *bucket) local.Effect {
			_, e := b.Bucket.Credit(b.crediting, local.Fill)
			return e
		})
	case Give:
		if w.scope.Algorithm.Has(lua.Window) {
			return false // which has no tokens
		}
		return p.credit(func(b *bucket) local.Effect {
			_, e := b.Bucket.Credit(b.crediting, int64(a.N))
			return e
		})
	case Freeze:
		p.freeze(w.scope.longestLease() / 100 * time.Duration(a.N))
		return true
	case Clone:
		return p.clone()
	case Crash:
		p.crash()
		return true
	case Change:
		p.change(a.N)
		return true
	case Guess:
		p.clockError = w.scope.longestLease() / 4 * time.Duration(a.N)
		return true
	case Lag:
		p.roundTrip = time.Duration(a.N) * time.Millisecond
		return true
	case Evict, Burn:
		return p.evict(a.Verb == Burn)
	case Probe:
		s := p.current()
		s.apply(s.Probe())
		return true
	case Suspend:
		p.wake()
		return true
	}
	var able []*bucket
	for _, s := range p.buckets {
		if a.Verb == GiveUp && s.call != nil || (a.Verb == Send || a.Verb == Drop) && s.queued ||
			a.Verb == Look && s.checkAt > 0 && s.checkAt <= now {
			able = append(able, s)
		}
	}
	i, ok := indexOf(len(able), a.N)
	if !ok {
		return false
	}
	switch s := able[i]; a.Verb {
	case Send:
		s.send()
	case GiveUp:
		s.giveUp()
	case Drop:
		s.queued = false
		s.failed() // there is no call, but it counts as one
		s.apply(s.Bucket.Drop(now))
		s.collect(nil)
	case Look:
		s.checkAt = 0
		s.apply(s.Check(now))
	default:
		panic(fmt.Sprintf("adversary: no verb %d", a.Verb))
	}
	return true
}
