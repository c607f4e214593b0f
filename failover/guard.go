package failover

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

const (
	// trips is how many failures in a row open the breaker. They count in a row and not within a window: leases make
	// calls rare, and a window would forget each failure before the next one.
	trips = 3

	// minOpen is how long the breaker is open at least, spread how much longer at most. Together they are 1 s: each
	// process that is not back yet adds what it admits alone.
	minOpen = 500 * time.Millisecond
	spread  = 500 * time.Millisecond

	// defaultTimeout is many round trips within a data center, and less than a caller would call an outage.
	defaultTimeout = 50 * time.Millisecond
)

// What ends an attempt that has no result of its own. Both are failures.
var (
	ErrTimeout = errors.New("failover: the attempt took longer than its timeout")
	ErrAborted = errors.New("failover: the attempt was broken off by a panic or runtime.Goexit")
)

// State is what the breaker does with attempts.
type State uint8

// The states.
const (
	Closed  State = iota // lets all attempts through
	Open                 // refuses all, until its open time is over
	Probing              // one attempt is under way, all others are refused
)

// String reports "closed", "open" or "probing".
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case Open:
		return "open"
	case Probing:
		return "probing"
	}
	return "unknown"
}

// Options are the options of [New]. The zero value is the defaults.
type Options struct {
	// Timeout is how long one attempt lasts at most, 50 ms when 0 or less. Then the Guard ends it as a failure.
	Timeout time.Duration

	// Uniform returns a random number in [0, 1): the part of the half second by which an open time exceeds its
	// minimum. It is called once each time the breaker opens, one call at a time, under the Guard's lock: it must do no
	// more than compute. Guards that share a source of random numbers must guard it. nil is rand.Float64.
	Uniform func() float64

	// Base is what [Guard.ReadyAt] counts from; zero is when the Guard is made.
	Base time.Time

	// OnChange is told each change of the state, in order, one at a time and under no lock: it may call the Guard. It
	// runs on a goroutine that calls Begin, End or Abort, or the timer's, and that one does not go on before OnChange
	// returns: it should be quick. All others do not wait; their changes are handed over by the one that does, so a
	// change may be told after the call that caused it has returned. nil is fine.
	OnChange func(Event)
}

// Event is a change of a Guard's state.
type Event struct {
	From, To State
	At       time.Time // when it happened; it may be told later
	Err      error     // how the attempt ended that opened the breaker, or left it open; nil when To is not Open
}

// Guard is the breaker of one Redis node. Create it with [New]; all methods may be called concurrently.
type Guard struct {
	timeout  time.Duration
	uniform  func() float64
	onChange func(Event)
	base     time.Time // times are monotonic since then

	state   atomic.Uint32 // a State
	probeAt atomic.Int64  // ns since base: when the open time is over; written before the state becomes Open

	mu      sync.Mutex // held around all calls of breaker, and taken before its own
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	half    bool  // gobreaker is half-open
	class   Class // of the attempt that is ending, for gobreaker's callbacks
	err     error // its error
	events  []Event
	telling bool // somebody is handing over events
}

// New returns a closed Guard.
func New(o Options) *Guard {
	g := &Guard{timeout: o.Timeout, uniform: o.Uniform, onChange: o.OnChange, base: o.Base}
	if g.base.IsZero() {
		g.base = time.Now()
	}
	if g.timeout <= 0 {
		g.timeout = defaultTimeout
	}
	if g.uniform == nil {
		g.uniform = rand.Float64
	}
	g.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests: 1,
		Interval:    0, // counts are never forgotten; see trips
		// gobreaker lets a probe through after this time, not at it. The Guard's own time is never shorter.
		Timeout:       minOpen - time.Nanosecond,
		IsExcluded:    func(error) bool { return g.class.excluded(g.half) },
		IsSuccessful:  func(error) bool { return g.class.success() },
		ReadyToTrip:   g.readyToTrip,
		OnStateChange: g.changed,
	})
	return g
}

// State reports what the Guard does with attempts now: one atomic load. It is Open until a probe has begun, also when
// the open time is over.
func (g *Guard) State() State { return State(g.state.Load()) }

// Ready reports whether an attempt would be let through: the Guard is closed, or its open time is over and nobody probes
// yet. It takes no lock; by the time of Begin it may be different.
func (g *Guard) Ready() bool { return g.ReadyAt(g.now()) }

// ReadyAt is Ready at a time since Options.Base, for a caller who has read the clock: that is most of its cost.
func (g *Guard) ReadyAt(now time.Duration) bool {
	switch g.State() {
	case Closed:
		return true
	case Open:
		return int64(now) >= g.probeAt.Load()
	default:
		return false
	}
}

func (g *Guard) now() time.Duration { return time.Since(g.base) }

// Begin starts an attempt, or reports false when the node is not to be asked now. If the attempt has not ended after
// Options.Timeout, the Guard ends it as a failure and calls expired (unless nil) on a goroutine of the timer: once, under
// no lock, and before the change of state is told.
func (g *Guard) Begin(expired func()) (*Attempt, bool) {
	a := g.admit(expired)
	g.tell()
	return a, a != nil
}

// admit starts an attempt; nil when it must not be.
func (g *Guard) admit(expired func()) *Attempt {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.Ready() { // gobreaker knows nothing of the part of the open time that the Guard drew
		return nil
	}
	done, err := g.breaker.Allow()
	if err != nil {
		return nil
	}
	a := &Attempt{guard: g, expired: expired, done: done, probe: g.half}
	if a.probe {
		g.become(Probing, nil)
	}
	a.timer = time.AfterFunc(g.timeout, a.expire)
	return a
}

// readyToTrip is asked by gobreaker, under both locks, after a failure while it is closed.
func (g *Guard) readyToTrip(c gobreaker.Counts) bool {
	return g.class == Misconfigured || c.ConsecutiveFailures >= trips
}

// changed is told by gobreaker, under both locks, that its state is another. Asking it anything from here would deadlock
// (gobreaker #37), and so would a user's function that does: events are queued.
//
// gobreaker becomes half-open whenever anybody asks it after its open time, even the late end of an attempt that began
// before. So that says nothing yet: Probing begins with an attempt, in admit.
func (g *Guard) changed(_ string, _, to gobreaker.State) {
	g.half = to == gobreaker.StateHalfOpen
	switch to {
	case gobreaker.StateClosed:
		g.become(Closed, nil)
	case gobreaker.StateOpen:
		g.probeAt.Store(int64(g.now() + g.openTime()))
		g.become(Open, g.err)
	}
}

// openTime draws how long the breaker is open. Whatever uniform returns, NaN too, it is minOpen at least and less than
// minOpen + spread.
func (g *Guard) openTime() time.Duration {
	u := g.uniform()
	if u >= 0 && u < 1 {
		return minOpen + time.Duration(u*float64(spread))
	}
	return minOpen + spread/2
}

// become changes the state, under the lock.
func (g *Guard) become(to State, err error) {
	from := State(g.state.Swap(uint32(to)))
	if g.onChange != nil {
		g.events = append(g.events, Event{From: from, To: to, At: time.Now(), Err: err})
	}
}

// tell hands over the events that are due, unless somebody is at it: that one will hand over all. Should OnChange panic,
// the rest is handed over by the next call.
func (g *Guard) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.telling {
		return
	}
	g.telling = true
	defer func() { g.telling = false }()
	for len(g.events) > 0 {
		e := g.events[0]
		g.events = g.events[1:]
		g.tellOne(e)
	}
	g.events = nil
}

// tellOne gives the lock away while OnChange runs.
func (g *Guard) tellOne(e Event) {
	g.mu.Unlock()
	defer g.mu.Lock()
	g.onChange(e)
}
