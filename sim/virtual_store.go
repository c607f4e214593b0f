package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// virtualStore is the way of one process to a virtual Redis. All but the messages is that of the Memory it embeds, which
// holds nothing.
type virtualStore struct {
	*remote.Memory
	world  *virtual
	number int
	link   *link
	dice   *dice

	mu   sync.Mutex
	idle int // connections that are open and not in use
	life int // of Redis, that they were made in
}

func (v *virtual) start(p *process) (body, error) { return v.newInside(p, v.open) }

func (v *virtual) open(number, slot int) (remote.Store, error) {
	return &virtualStore{
		Memory: remote.NewMemory(), world: v, number: number, link: v.link(slot),
		dice: newDice(v.seed, fmt.Sprintf("process %d, network", number), v.base),
	}, nil
}

// Run executes calls as remote.Redis does: in a round trip, and until timeout.
func (s *virtualStore) Run(_ context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	// The caller may be gone when it is executed, so it is not written to before that is known.
	executed := make([]remote.Result, len(calls))
	err := s.trip(timeout, tokenBucket, func(m *remote.Memory, refusal error) {
		if refusal != nil {
			fail(executed, refusal)
			return
		}
		for i := range calls {
			s.world.execute(memoryShelf{m}, s.number, &calls[i], func() (lua.Reply, bool) {
				m.Run(context.Background(), timeout, calls[i:i+1], executed[i:])
				return executed[i].Reply, executed[i].Err == nil
			})
			s.world.answered(s.number, executed[i].Reply.Code, executed[i].Reply.Grant)
		}
	})
	if err != nil {
		fail(results[:len(calls)], err)
	} else {
		copy(results, executed)
	}
}

// memoryShelf is a Memory as the auditor reads it.
type memoryShelf struct{ *remote.Memory }

func (m memoryShelf) values(bucket string, fields ...string) []string {
	return m.Values(bucket, fields...)
}
func (m memoryShelf) fields(bucket string) map[string]string { return m.Fields(bucket) }
func (m memoryShelf) left(bucket string) time.Duration {
	return time.Duration(max(m.PTTL(bucket), 0)) * time.Millisecond
}

func fail(results []remote.Result, err error) {
	for i := range results {
		results[i] = remote.Result{Err: err}
	}
}

// Presence says that a process is here; see remote.Store.
func (s *virtualStore) Presence(
	_ context.Context, timeout time.Duration, node remote.Node, id string, ttl time.Duration,
) (remote.Census, error) {
	var c remote.Census
	var err error
	if lost := s.trip(timeout, presence, func(m *remote.Memory, refusal error) {
		if err = refusal; err == nil {
			c, err = m.Presence(context.Background(), timeout, node, id, ttl)
		}
	}); lost != nil {
		return remote.Census{}, lost // and leaves c and err to who executes it late
	}
	return c, err
}

// trip sends a request and waits for its reply, until timeout. execute is called when the request arrives, if it does: maybe
// after the timeout, and then nobody looks at what it did.
func (s *virtualStore) trip(timeout time.Duration, script int, execute func(m *remote.Memory, refusal error)) error {
	_, state, lives, _ := s.world.at(script)
	c, _ := s.link.now()
	w := wayTo{timeout: timeout, there: s.way(c), back: s.way(c), lives: lives}
	connected := s.connected(lives)
	switch {
	case !connected && (c.holdOut || c.holdIn): // whoever dials sends nothing before he knows that somebody listens
		time.Sleep(timeout)
		return errTimedOut
	case state.down:
		return errRefused
	}
	replied := make(chan error, 1)
	s.world.messages.Go(func() { replied <- s.travel(&w, connected, script, execute) })
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-replied:
		if err == nil {
			s.mu.Lock()
			s.idle++
			s.mu.Unlock()
		}
		return err
	case <-timer.C:
		return errTimedOut
	}
}

// connected takes a connection that is open, and reports whether there was one. A connection is lost with a request or a
// reply, and by a timeout: what goes on after a gap is no stream.
func (s *virtualStore) connected(life int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != life {
		s.idle, s.life = 0, life
	}
	if s.idle == 0 {
		return false
	}
	s.idle--
	return true
}

// wayTo is a way to Redis, and back.
type wayTo struct {
	timeout     time.Duration
	there, back time.Duration
	lives       int // of Redis, when it was taken
}

// greetings is what go-redis sends over a new connection before it is used, and waits for each: HELLO, and who it is. What a
// network loses it loses of them as well, so who has lost a connection is more likely to lose the next: of 5 % that are lost
// three in a row, which open a breaker, are not one in 8000 but one in 1000.
const greetings = 2

// travel is the way of a request, and of its reply. Who has no connection makes one before. It goes on when the caller has hung
// up, as through a proxy between them, and unlike what a client of its own sends: what comes late, and after its successor, must
// do nothing, and is seldom enough.
func (s *virtualStore) travel(w *wayTo, connected bool, script int, execute func(m *remote.Memory, refusal error)) error {
	if !connected {
		time.Sleep(w.there + w.back) // until somebody listens
		for range greetings {
			if err := s.exchange(w, script, func(*remote.Memory, service, bool) {}); err != nil {
				return err
			}
		}
	}
	unknown := false
	err := s.exchange(w, script, func(m *remote.Memory, state service, loaded bool) {
		switch {
		case state.refuse != "":
			execute(m, refused(state.refuse))
		case loaded:
			execute(m, nil)
		default:
			unknown = true // NOSCRIPT
		}
	})
	if err != nil || !unknown {
		return err
	}
	return s.exchange(w, script, func(m *remote.Memory, state service, _ bool) {
		if state.refuse != "" {
			execute(m, refused(state.refuse))
			return
		}
		s.world.load(script)
		execute(m, nil)
	})
}

// exchange is a message over a connection, and the answer to it. Each is subject to what is wrong with the network when it is
// sent. arrive is called when it gets to a Redis that is up.
func (s *virtualStore) exchange(w *wayTo, script int, arrive func(m *remote.Memory, state service, loaded bool)) error {
	c, _ := s.link.now()
	// Drawn whatever the faults are, so that what happens to the next message does not depend on what they were for this.
	cut, lost := s.dice.uniform(), s.dice.uniform()
	switch {
	case c.holdOut:
		time.Sleep(w.timeout) // by then nobody waits any more
		return errTimedOut
	case cut < c.cut:
		return errReset
	}
	time.Sleep(time.Until(s.arrival(w.there)))
	s.world.frozen.pass()
	m, state, lives, loaded := s.world.at(script)
	if state.down || lives != w.lives {
		return errReset // whatever waited in the buffers of Redis died with it
	}
	arrive(m, state, loaded)
	time.Sleep(w.back)
	if lost < c.lose {
		return errReset
	}
	for {
		c, changed := s.link.now()
		if !c.holdIn {
			break
		}
		<-changed
		time.Sleep(w.back) // sent again
	}
	if _, _, lives, _ := s.world.at(script); lives != w.lives {
		return errReset
	}
	return nil
}

// way is how long a message takes, one way.
func (s *virtualStore) way(c conditions) time.Duration {
	n := &s.world.net
	d := (time.Duration(n.RTT) + c.delay) / 2
	if jitter := time.Duration(n.Jitter) + c.jitter; jitter > 0 {
		d += s.dice.exponential(jitter / 2)
	}
	return d
}

// arrival is when a request arrives that takes so long: a little later, so that no two processes reach Redis at one instant,
// at which the processors would order them. Each has instants of its own, one in so many as there are processes.
func (s *virtualStore) arrival(there time.Duration) time.Time {
	v := s.world
	at := time.Since(v.base) + there
	at += time.Duration((int64(s.number) - int64(at)) & (v.lanes - 1))
	return v.base.Add(at)
}
