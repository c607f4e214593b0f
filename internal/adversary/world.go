package adversary

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/tiered-limiter/tiered-limiter/local"
	"github.com/tiered-limiter/tiered-limiter/lua"
)

// World is a fleet of processes, a bucket that they share, and everything that lies between. It is single-threaded and
// has no clock: what it does follows from its scope, its seed and the choices alone.
type World struct {
	scope    *Scope
	bank     *Bank
	bucket   string // its name there
	uniform  func() float64
	policies []*local.Policy // of each process, at present
	rule     rule
	limits   []*limit
	deployed bool
	began    map[lua.Limit]int // of versions: the admissions before a limit was first counted

	now      time.Duration // real time, the same for all
	offset   time.Duration // of the server's clock, from real time
	setBacks time.Duration // of it, all told
	keyEnd   int64         // ms of the server's clock after which the bucket has expired; 0 there is none

	processes []*process
	born      int // processes ever started
	requests  []*request
	replies   []*reply

	replica *Bank // a copy of what the server held

	admissions admissions
	window     int64 // a fixed one's: the last that was written in, or in which a segment began
	segment    int   // see fixedRule
	segments   int   // so far
	forgotten  int   // admissions before the last reset of a window
	written    int   // the segment in which the bucket was last written
	state      state // of the bucket, as last written
	harmed     bool  // an assumption was broken: see concede
	owed       int64 // charged by Owe
	calls      int   // executed

	// Tokens that moved without anybody's knowing, for the books.
	outside  int64 // taken by outsiders
	vain     int64 // granted directly by replies that nobody accepted
	credited int64 // refunds that were credited by calls that nobody saw answered

	fault string // the first thing that broke
	story *strings.Builder
	told  int // of the story, before the step under way
}

// epoch is the server's time at the start, µs since 1970: 16 digits, as in production.
const epoch = int64(1_763_640_000_000_000)

// New returns a world at its start. The seed decides over the processes' jitter; with 0 there is none. bucket names it in the bank, which may
// hold others.
func New(s *Scope, bank *Bank, bucket string, seed uint64) *World {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &World{began: map[lua.Limit]int{}, scope: s, bank: bank, bucket: bucket, uniform: r.Float64}
	if seed == 0 {
		w.uniform = func() float64 { return 0.5 }
	}
	w.rule = ruleOf(s)
	for i := range s.Bursts {
		w.policies = append(w.policies, s.policy(i, false, w.uniform))
		if s.Versions == nil {
			w.know(s.limits(i, false))
		}
	}
	if s.Versions != nil {
		w.know([]lua.Limit{s.together()})
	}
	w.turn()
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

// warm makes the process believe in a demand of many tokens a millisecond.
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

// pass lets time go by.
func (w *World) pass(d time.Duration) {
	w.now += max(d.Truncate(time.Microsecond), time.Microsecond)
	w.turn()
	w.tellf("%v", w.now)
}

// edge lets time go by until the next thing ends: a lease's record, or the time within which a request is wanted. Off is
// added: at the instant itself it is over.
func (w *World) edge(off time.Duration) bool {
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
	w.pass(time.Duration(next)*time.Microsecond + off)
	return true
}

// setBack sets the server's clock back. A refund whose copies are still about may then count twice: that is conceded,
// by letting no refund be under way.
func (w *World) setBack(d time.Duration) {
	w.offset -= d
	w.setBacks += d
	w.turnBack()
	for _, r := range w.requests {
		if r.call.Refund > 0 {
			r.lost = true
		}
	}
}

// jump sets the server's clock ahead: a bucket credits the time, once, and a window ends early; and leases end there before
// they end here.
func (w *World) jump(d time.Duration) {
	w.offset += d
	w.concede(func(l *limit) int64 {
		if w.scope.windows() {
			return l.Cap
		}
		return min(l.Cap, int64(float64(d)*float64(l.Tokens)/float64(w.scope.length(l.Limit)))+1)
	})
}

// uncovered concedes what a jump of the clock leaves to processes whose leases ended early at the server: the refill of
// the jump pays for it, but a Reset fills their room at once.
func (w *World) uncovered() {
	if !w.harmed {
		return
	}
	for _, p := range w.processes {
		if extra := p.holds() - w.cover(p); extra > 0 {
			w.concede(tokens(extra))
		}
	}
}

// vanish loses the bucket: the next call finds a full one.
func (w *World) vanish() bool {
	if !w.state.Exists {
		return false
	}
	w.lose()
	w.concede((*limit).all)
	return true
}

func (w *World) lose() {
	w.bank.lose(w.bucket)
	w.state, w.keyEnd = state{}, 0
}

// concede notes that an assumption was broken, and what it may cost each limit.
func (w *World) concede(cost func(*limit) int64) {
	for i, l := range w.limits {
		n := cost(l)
		l.conceded += n
		w.harmed = w.harmed || n > 0
		w.tellf("conceded in limit %d: %d", i+1, n)
	}
}

// tokens is as many of every limit.
func tokens(n int64) func(*limit) int64 { return func(*limit) int64 { return n } }

// failf notes what broke, the first time.
func (w *World) failf(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
	}
}

// tellf adds a line to the story, when somebody wants to read it.
func (w *World) tellf(format string, args ...any) {
	if w.story != nil {
		fmt.Fprintf(w.story, "        "+format+"\n", args...)
	}
}

// stepf begins a step's part of the story; with nothing for a, the last step was not possible and is struck out.
func (w *World) stepf(i int, a fmt.Stringer) {
	if w.story == nil {
		return
	}
	if a != nil {
		w.told = w.story.Len()
		fmt.Fprintf(w.story, "%4d  %v\n", i, a)
		return
	}
	before := w.story.String()[:w.told]
	w.story.Reset()
	w.story.WriteString(before)
}
