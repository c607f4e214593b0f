package sim

import (
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// network is what lies between the processes and Redis. A message is a goroutine that sleeps.
type network struct {
	server *server
	base   time.Time    // of the run
	net    scenario.Net // while nothing is wrong
	lanes  int64        // a power of two; see connection.arrival

	messages sync.WaitGroup // under way
	links    []*link        // by slot; the schedule alone adds to it
}

// newNetwork returns the network of a fleet of up to most processes at a time.
func newNetwork(s *server, base time.Time, n scenario.Net, most int) *network {
	w := &network{server: s, base: base, net: n, lanes: 1}
	for w.lanes < int64(most) {
		w.lanes *= 2
	}
	return w
}

// conditions are the faults of a link. The zero value is a healthy one.
type conditions struct {
	holdOut, holdIn bool // requests, or replies, are held back
	// 0 … 1: the part of the requests, and of the replies, that are lost with their connections
	cut, lose     float64
	delay, jitter time.Duration // added to a round trip; jitter is the mean of an exponential distribution
}

// plus combines two faults.
func (c conditions) plus(d conditions) conditions {
	return conditions{
		holdOut: c.holdOut || d.holdOut, holdIn: c.holdIn || d.holdIn,
		cut: either(c.cut, d.cut), lose: either(c.lose, d.lose),
		delay: c.delay + d.delay, jitter: c.jitter + d.jitter,
	}
}

// either returns the probability that at least one of two independent events happens.
func either(p, q float64) float64 { return p + q - p*q }

// link is the way of a slot to Redis. It belongs to the slot and not to its process, so that the
// successor of a process that is cut off is cut off too.
type link struct {
	mu      sync.Mutex
	c       conditions
	changed chan struct{} // closed, and replaced, when c changes
}

func (l *link) now() (conditions, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c, l.changed
}

// set changes what is wrong with a link.
func (l *link) set(c conditions) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c == l.c {
		return
	}
	l.c = c
	close(l.changed)
	l.changed = make(chan struct{})
}

// connection is how one process reaches Redis: a pool of connections over the link of its slot.
type connection struct {
	*network
	number int // of the process
	link   *link
	random *concurrentRand

	mu   sync.Mutex
	idle int // open connections that nobody uses
	life int // of Redis when they were made
}

// arrive is what a request does when it reaches Redis: refusal is the error that Redis answers
// instead of executing it.
type arrive func(m *remote.Memory, refusal error)

// roundTrip sends a request and waits for its reply, until timeout. do runs if the request arrives.
// That may be after the timeout; then its result is ignored.
func (c *connection) roundTrip(timeout time.Duration, script int, do arrive) error {
	_, state, life, _ := c.server.now(script)
	now, _ := c.link.now()
	w := route{timeout: timeout, there: c.latency(now), back: c.latency(now), life: life}
	open := c.take(life)
	switch {
	case !open && (now.holdOut || now.holdIn): // a dialer sends nothing before the server has answered
		time.Sleep(timeout)
		return errTimedOut
	case state.down:
		return errRefused
	}
	replied := make(chan error, 1)
	c.messages.Go(func() { replied <- c.deliver(&w, open, script, do) })
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-replied:
		if err == nil {
			c.mu.Lock()
			c.idle++
			c.mu.Unlock()
		}
		return err
	case <-timer.C:
		return errTimedOut
	}
}

// take takes an idle connection, and reports whether there was one. A connection ends with a lost
// request or reply, and with a timeout: a stream has no gaps.
func (c *connection) take(life int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life != life {
		c.idle, c.life = 0, life
	}
	if c.idle == 0 {
		return false
	}
	c.idle--
	return true
}

// route is the way of a request to Redis, and back.
type route struct {
	timeout     time.Duration
	there, back time.Duration
	life        int // of Redis when the request left
}

// handshakes is the number of exchanges of go-redis on a new connection before its first use:
// HELLO, and the client's name. They can be lost too, so a process that lost a connection is more
// likely to lose the next. At 5 % lost, three losses in a row, which open a breaker, come once in
// 1000, not once in 8000.
const handshakes = 2

// deliver carries a request to Redis and its reply back, over a new connection unless one is open.
// It goes on when the caller has hung up, as through a proxy between them. Such late calls must do
// nothing; a client without a proxy seldom makes one.
func (c *connection) deliver(w *route, open bool, script int, do arrive) error {
	if !open {
		time.Sleep(w.there + w.back) // the connection is made
		for range handshakes {
			if err := c.exchange(w, script, func(*remote.Memory, serverState, bool) {}); err != nil {
				return err
			}
		}
	}
	for again := false; ; again = true {
		unknown := false
		err := c.exchange(w, script, func(m *remote.Memory, state serverState, loaded bool) {
			if state.refuse != "" {
				do(m, refused(state.refuse))
				return
			}
			if unknown = !loaded && !again; unknown {
				return // NOSCRIPT
			}
			if again {
				c.server.load(script)
			}
			do(m, nil)
		})
		if err != nil || !unknown {
			return err
		}
	}
}

// exchange sends a message over a connection and waits for the answer. The faults of the link at
// its sending apply. arrives runs when the message reaches a Redis that is up.
func (c *connection) exchange(w *route, script int,
	arrives func(m *remote.Memory, state serverState, loaded bool),
) error {
	now, _ := c.link.now()
	// Always drawn, so that what happens to the next message does not depend on the faults of this
	// one.
	cut, lost := c.random.uniform(), c.random.uniform()
	switch {
	case now.holdOut:
		time.Sleep(w.timeout) // by then nobody waits
		return errTimedOut
	case cut < now.cut:
		return errReset
	}
	time.Sleep(time.Until(c.arrival(w.there)))
	c.server.frozen.pass()
	m, state, life, loaded := c.server.now(script)
	if state.down || life != w.life {
		return errReset // what waited in the buffers of Redis died with it
	}
	arrives(m, state, loaded)
	time.Sleep(w.back)
	if lost < now.lose {
		return errReset
	}
	for {
		now, changed := c.link.now()
		if !now.holdIn {
			break
		}
		<-changed
		time.Sleep(w.back) // sent again
	}
	if _, _, life, _ := c.server.now(script); life != w.life {
		return errReset
	}
	return nil
}

// latency draws the time of a message, one way.
func (c *connection) latency(now conditions) time.Duration {
	d := (time.Duration(c.net.RTT) + now.delay) / 2
	if jitter := time.Duration(c.net.Jitter) + now.jitter; jitter > 0 {
		d += c.random.exponential(jitter / 2)
	}
	return d
}

// arrival returns when a request arrives that takes so long. It is rounded up to an instant of this
// process, so that no two processes reach Redis at one instant, at which the processors would order
// them. Of as many instants in a row as there are processes, each process has one.
func (c *connection) arrival(there time.Duration) time.Time {
	at := time.Since(c.base) + there
	at += time.Duration((int64(c.number) - int64(at)) & (c.lanes - 1))
	return c.base.Add(at)
}

// The errors of a broken network.
var (
	errRefused  = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	errReset    = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	errTimedOut = &net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}
)
