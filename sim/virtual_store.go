package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// virtualStore connects one process to a virtual Redis. The Memory that it embeds holds nothing; it answers all that
// needs no message.
type virtualStore struct {
	*remote.Memory
	redis  *virtualEngine
	number int
	link   *link
	random *concurrentRand

	mu         sync.Mutex
	idle       int // open connections that nobody uses
	generation int // of Redis when they were made
}

func (v *virtualEngine) start(p *process) (instance, error) { return v.newSimulatedProcess(p, v.open) }

func (v *virtualEngine) open(number, slot int) (remote.Store, error) {
	return &virtualStore{
		Memory: remote.NewMemory(), redis: v, number: number, link: v.link(slot),
		random: newConcurrentRand(v.seed, fmt.Sprintf("process %d, network", number), v.base),
	}, nil
}

// Run executes calls as remote.Redis does: in a round trip, and until timeout.
func (s *virtualStore) Run(_ context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	// The caller may be gone when the call is executed, so the results are not written before that is known.
	executed := make([]remote.Result, len(calls))
	err := s.roundTrip(timeout, tokenBucket, func(m *remote.Memory, refusal error) {
		if refusal != nil {
			fail(executed, refusal)
			return
		}
		for i := range calls {
			s.redis.execute(memoryReader{m}, s.number, &calls[i], func() (lua.Reply, bool) {
				m.Run(context.Background(), timeout, calls[i:i+1], executed[i:])
				return executed[i].Reply, executed[i].Err == nil
			})
			s.redis.answered(s.number, executed[i].Reply.Code, executed[i].Reply.Grant)
		}
	})
	if err != nil {
		fail(results[:len(calls)], err)
	} else {
		copy(results, executed)
	}
}

// memoryReader reads a Memory for the audit.
type memoryReader struct{ *remote.Memory }

func (m memoryReader) someFields(bucket string, fields ...string) []string {
	return m.Values(bucket, fields...)
}
func (m memoryReader) allFields(bucket string) map[string]string { return m.Fields(bucket) }
func (m memoryReader) ttl(bucket string) time.Duration {
	return time.Duration(max(m.PTTL(bucket), 0)) * time.Millisecond
}

func fail(results []remote.Result, err error) {
	for i := range results {
		results[i] = remote.Result{Err: err}
	}
}

// Presence reports the process as present; see remote.Store.
func (s *virtualStore) Presence(
	_ context.Context, timeout time.Duration, node remote.Node, p remote.Process,
) (remote.Census, error) {
	var c remote.Census
	var err error
	if lost := s.roundTrip(timeout, presence, func(m *remote.Memory, refusal error) {
		if err = refusal; err == nil {
			c, err = m.Presence(context.Background(), timeout, node, p)
		}
	}); lost != nil {
		return remote.Census{}, lost // c and err still belong to a late execution
	}
	return c, err
}

// roundTrip sends a request and waits for its reply, until timeout. execute runs if the request arrives. That may be
// after the timeout; then its result is ignored.
func (s *virtualStore) roundTrip(timeout time.Duration, script int,
	execute func(m *remote.Memory, refusal error),
) error {
	_, state, lives, _ := s.redis.at(script)
	c, _ := s.link.now()
	w := route{timeout: timeout, there: s.latency(c), back: s.latency(c), generation: lives}
	connected := s.connected(lives)
	switch {
	case !connected && (c.holdOut || c.holdIn): // a dialer sends nothing before the server has answered
		time.Sleep(timeout)
		return errTimedOut
	case state.down:
		return errRefused
	}
	replied := make(chan error, 1)
	s.redis.messages.Go(func() { replied <- s.deliver(&w, connected, script, execute) })
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

// connected takes an idle connection, and reports whether there was one. A connection ends with a lost request or
// reply, and with a timeout: a stream has no gaps.
func (s *virtualStore) connected(life int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generation != life {
		s.idle, s.generation = 0, life
	}
	if s.idle == 0 {
		return false
	}
	s.idle--
	return true
}

// route is the way of a request to Redis, and back.
type route struct {
	timeout     time.Duration
	there, back time.Duration
	generation  int // of Redis when the request left
}

// handshakes is the number of exchanges of go-redis on a new connection before its first use: HELLO, and the client's
// name. They can be lost too, so a process that lost a connection is more likely to lose the next. At 5 % lost, three
// losses in a row, which open a breaker, come once in 1000, not once in 8000.
const handshakes = 2

// deliver carries a request to Redis and its reply back, over a new connection if there is none. It goes on when the
// caller has hung up, as through a proxy between them. Such late calls must do nothing; a client without a proxy seldom
// makes one.
func (s *virtualStore) deliver(w *route, connected bool, script int,
	execute func(m *remote.Memory, refusal error),
) error {
	if !connected {
		time.Sleep(w.there + w.back) // the connection is made
		for range handshakes {
			if err := s.exchange(w, script, func(*remote.Memory, redisState, bool) {}); err != nil {
				return err
			}
		}
	}
	unknown := false
	err := s.exchange(w, script, func(m *remote.Memory, state redisState, loaded bool) {
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
	return s.exchange(w, script, func(m *remote.Memory, state redisState, _ bool) {
		if state.refuse != "" {
			execute(m, refused(state.refuse))
			return
		}
		s.redis.load(script)
		execute(m, nil)
	})
}

// exchange sends a message over a connection and waits for the answer. The faults of the network at its sending apply.
// arrive runs when it reaches a Redis that is up.
func (s *virtualStore) exchange(w *route, script int,
	arrive func(m *remote.Memory, state redisState, loaded bool),
) error {
	c, _ := s.link.now()
	// Always drawn, so that what happens to the next message does not depend on the faults of this one.
	cut, lost := s.random.uniform(), s.random.uniform()
	switch {
	case c.holdOut:
		time.Sleep(w.timeout) // by then nobody waits
		return errTimedOut
	case cut < c.cut:
		return errReset
	}
	time.Sleep(time.Until(s.arrival(w.there)))
	s.redis.frozen.pass()
	m, state, lives, loaded := s.redis.at(script)
	if state.down || lives != w.generation {
		return errReset // what waited in the buffers of Redis died with it
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
	if _, _, lives, _ := s.redis.at(script); lives != w.generation {
		return errReset
	}
	return nil
}

// latency draws the time of a message, one way.
func (s *virtualStore) latency(c conditions) time.Duration {
	n := &s.redis.net
	d := (time.Duration(n.RTT) + c.delay) / 2
	if jitter := time.Duration(n.Jitter) + c.jitter; jitter > 0 {
		d += s.random.exponential(jitter / 2)
	}
	return d
}

// arrival returns when a request arrives that takes so long. It is rounded up to an instant of this process, so that no
// two processes reach Redis at one instant, at which the processors would order them. Of so many instants as there are
// processes, each has one.
func (s *virtualStore) arrival(there time.Duration) time.Time {
	v := s.redis
	at := time.Since(v.base) + there
	at += time.Duration((int64(s.number) - int64(at)) & (v.lanes - 1))
	return v.base.Add(at)
}
