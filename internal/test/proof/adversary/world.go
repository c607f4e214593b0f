package adversary

import (
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
