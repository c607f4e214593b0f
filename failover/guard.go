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
	// maxFailures is the number of failures in a row that open the breaker. Each says something
	// new: it began after the last one had ended, or ended at least apart later. So calls without
	// an answer span 150 ms with the default Timeout, however many they are: a Redis that stands
	// still for 120 ms is slow, and not gone. There is no time window: leases make calls rare, and
	// a window would forget each failure before the next one.
	maxFailures = 3
	apart       = 50 * time.Millisecond

	// firstOpen is about how long the breaker is open at first, because most outages are short.
	// Each probe without an answer doubles that, up to between minOpen and minOpen + openJitter.
	// Together they are 1 s, because during that time each process admits by its fail mode.
	firstOpen  = 50 * time.Millisecond
	minOpen    = 500 * time.Millisecond
	openJitter = 500 * time.Millisecond

	// defaultTimeout is many round trips within a data center, and less than a caller would call an
	// outage.
	defaultTimeout = 50 * time.Millisecond
)

// ErrTimeout and ErrAborted end an attempt that has no result of its own. Both are failures.
var (
	ErrTimeout = errors.New("failover: the attempt took longer than its timeout")
	ErrAborted = errors.New("failover: the attempt was broken off by a panic or runtime.Goexit")
)

// State says what the breaker does with attempts.
type State uint8

// The states.
const (
	Closed  State = iota // lets all attempts through
	Open                 // refuses all attempts until its open time is over
	Probing              // one attempt is under way; all others are refused
)

var states = [...]string{Closed: "closed", Open: "open", Probing: "probing"}

// String returns "closed", "open" or "probing".
func (s State) String() string {
	if int(s) < len(states) {
		return states[s]
	}
	return "unknown"
}

// Options are the options of [New]. The zero value is the defaults.
type Options struct {
	// Timeout is the longest that one attempt lasts; 50 ms if 0 or less. Then the Guard ends it as
	// a failure. See [Guard.SetTimeout].
	Timeout time.Duration

	// Uniform returns a random number in [0, 1). Times half a second, it is added to the minimum
	// open time. It is called once each time the breaker opens, under the Guard's lock, so it must
	// only compute. If Guards share a source of random numbers, Uniform must synchronize access to
	// it. nil means rand.Float64.
	Uniform func() float64

	// Base is the time from which [Guard.ReadyAt] counts. Zero means the time of New.
	Base time.Time

	// OnChange is called for each change of the state, in order, one at a time and without a lock:
	// it may call the Guard. It runs on a goroutine that calls Begin, End or Abort, or on the
	// timer's. That goroutine waits for OnChange, so it should be quick. Other goroutines do not
	// wait: the waiting one delivers their changes too. So a change may be delivered after the call
	// that caused it has returned. nil means no callback.
	OnChange func(Event)
}

// Event is a change of a Guard's state.
type Event struct {
	From, To State
	At       time.Time // when it happened; it may be delivered later
	Err      error     // result of the attempt that opened the breaker or kept it open; nil if To is not Open
}

// Guard is the breaker of one Redis node. Create it with [New]. All methods may be called
// concurrently.
type Guard struct {
	timeout  atomic.Int64 // ns, of an attempt; see SetTimeout
	uniform  func() float64
	onChange func(Event)
	base     time.Time // times are monotonic since then

	state   atomic.Uint32 // a State
	probeAt atomic.Int64  // ns since base at which the open time is over; written before the state becomes Open

	mu         sync.Mutex // held around all calls of breaker, and taken before breaker's own lock
	breaker    *gobreaker.TwoStepCircuitBreaker[struct{}]
	halfOpen   bool          // gobreaker is half-open
	class      Class         // class of the attempt that is ending, for gobreaker's callbacks
	err        error         // its error
	nothingNew bool          // it failed, and so did another at about the same time
	failedAt   time.Duration // when the last attempt ended that gobreaker counted as a failure while closed, since base
	opened     int           // times that the breaker opened since it was last closed
	events     []Event
	delivering bool // a goroutine is delivering events
}

// New returns a closed Guard.
func New(o Options) *Guard {
	g := &Guard{uniform: o.Uniform, onChange: o.OnChange, base: o.Base}
	if g.base.IsZero() {
		g.base = time.Now()
	}
	g.SetTimeout(o.Timeout)
	if g.uniform == nil {
		g.uniform = rand.Float64
	}
	g.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:   1,
		Interval:      0,               // counts never expire; see maxFailures
		Timeout:       time.Nanosecond, // the Guard's own open time counts
		IsExcluded:    func(error) bool { return g.nothingNew || g.class.excluded(g.halfOpen) },
		IsSuccessful:  func(error) bool { return g.class.success() },
		ReadyToTrip:   g.readyToTrip,
		OnStateChange: g.onStateChange,
	})
	return g
}

// SetTimeout sets the longest that an attempt lasts; 50 ms if 0 or less. An attempt that is under
// way may last longer then, but not shorter.
func (g *Guard) SetTimeout(d time.Duration) {
	if d <= 0 {
		d = defaultTimeout
	}
	g.timeout.Store(int64(d))
}

// State returns the current state with one atomic load. It is Open until a probe has begun, even if
// the open time is over.
func (g *Guard) State() State { return State(g.state.Load()) }

// Ready reports whether an attempt would be let through: the Guard is closed, or its open time is
// over and no probe is under way. It takes no lock, so Begin may still refuse.
func (g *Guard) Ready() bool { return g.ReadyAt(g.now()) }

// ReadyAt is Ready at a time since Options.Base. It saves a caller that has read the clock most of
// Ready's cost.
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

// Begin starts an attempt. It reports false if the node must not be called now. If the attempt has
// not ended after Options.Timeout, the Guard ends it as a failure and calls expired (unless it is
// nil) on a goroutine of the timer: once, without a lock, and before OnChange gets the change of
// state.
func (g *Guard) Begin(expired func()) (*Attempt, bool) { return g.BeginAgain(nil, expired) }

// BeginAgain is Begin for a caller that has an Attempt of this Guard which is over. It may return
// the same one, started anew, to save the allocation of an Attempt and its timer. Nothing else may
// use the old Attempt any more. An old Attempt of nil, or one that its timer has ended, is not
// reused.
func (g *Guard) BeginAgain(old *Attempt, expired func()) (*Attempt, bool) {
	a := g.admit(old, expired)
	g.deliver()
	return a, a != nil
}

// admit starts an attempt, or returns nil if there must be none.
func (g *Guard) admit(old *Attempt, expired func()) *Attempt {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.Ready() { // gobreaker does not know the part of the open time that the Guard drew
		return nil
	}
	done, err := g.breaker.Allow()
	if err != nil {
		return nil
	}
	a := old
	if a == nil || !a.quiet {
		a = &Attempt{guard: g}
	}
	a.expired, a.done, a.probe, a.quiet = expired, done, g.halfOpen, false
	if a.probe {
		g.setState(Probing, nil)
	}
	timeout := time.Duration(g.timeout.Load())
	a.began, a.lasts = g.now(), timeout
	if a.timer == nil {
		a.timer = time.AfterFunc(timeout, a.expire)
	} else {
		a.timer.Reset(timeout)
	}
	return a
}

// Answered tells the Guard that the node has answered a call whose attempt is over. Late as the
// answer is, the node is there: failures before count no more, and an open breaker closes. It does
// nothing while a probe is under way.
func (g *Guard) Answered() {
	g.mu.Lock()
	if g.State() != Probing {
		if done, err := g.breaker.Allow(); err == nil {
			if g.halfOpen {
				g.setState(Probing, nil)
			}
			g.class, g.nothingNew = Fine, false
			done(nil)
		}
	}
	g.mu.Unlock()
	g.deliver()
}

// ProbeAt returns from when on a probe is let through, since Options.Base. It means something while
// the Guard is Open.
func (g *Guard) ProbeAt() time.Duration { return time.Duration(g.probeAt.Load()) }

// readyToTrip is called by gobreaker, under both locks, after a failure while it is closed.
func (g *Guard) readyToTrip(c gobreaker.Counts) bool {
	g.failedAt = g.now()
	return g.class == Misconfigured || c.ConsecutiveFailures >= maxFailures
}

// onStateChange is called by gobreaker, under both locks, after a change of its state. Calling
// gobreaker from here would deadlock (gobreaker #37), also in a user's callback, so events are
// queued.
//
// gobreaker becomes half-open as soon as anything asks it after its open time, even the late end of
// an attempt that began before. So half-open alone is not Probing: that begins with an attempt, in
// admit.
func (g *Guard) onStateChange(_ string, _, to gobreaker.State) {
	g.halfOpen = to == gobreaker.StateHalfOpen
	switch to {
	case gobreaker.StateClosed:
		g.opened = 0
		g.setState(Closed, nil)
	case gobreaker.StateOpen:
		g.probeAt.Store(int64(g.now() + g.openTime()))
		g.opened++
		g.setState(Open, g.err)
	}
}

// openTime draws how long the breaker is open: three to five quarters of firstOpen, doubled each
// time that it opens again, and from the fifth time on at least minOpen and less than minOpen +
// openJitter. Whatever Uniform returns, NaN included.
func (g *Guard) openTime() time.Duration {
	u := g.uniform()
	if !(u >= 0 && u < 1) {
		u = 0.5
	}
	if d := firstOpen << min(g.opened, 10); d < minOpen {
		return d*3/4 + time.Duration(u*float64(d/2))
	}
	return minOpen + time.Duration(u*float64(openJitter))
}

// setState changes the state. The lock is held.
func (g *Guard) setState(to State, err error) {
	from := State(g.state.Swap(uint32(to)))
	if g.onChange != nil {
		g.events = append(g.events, Event{From: from, To: to, At: time.Now(), Err: err})
	}
}

// deliver calls OnChange for each queued event, unless another goroutine is doing so: that one
// delivers all. If OnChange panics, the next call delivers the rest.
func (g *Guard) deliver() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.delivering {
		return
	}
	g.delivering = true
	defer func() { g.delivering = false }()
	for len(g.events) > 0 {
		e := g.events[0]
		g.events = g.events[1:]
		g.deliverOne(e)
	}
	g.events = nil
}

// deliverOne releases the lock while OnChange runs.
func (g *Guard) deliverOne(e Event) {
	g.mu.Unlock()
	defer g.mu.Lock()
	g.onChange(e)
}
