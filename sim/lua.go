package sim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/harness"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
	"github.com/tiered-limiter/tiered-limiter/sim/scenario"
)

// luaEngine runs the shipped scripts in miniredis, through go-redis and a faultnet per slot. The jitter of its network
// is uniform, with the mean that the scenario states.
type luaEngine struct {
	listener
	seed  uint64
	net   scenario.Net
	redis *miniredis.Miniredis

	frozen pauseGate

	mu         sync.Mutex
	state      redisState
	generation int           // rises when all connections are cut
	clock      time.Duration // by how much that of Redis was moved
	moved      bool          // ever
	links      []*faultyLink // by slot
	replica    *snapshot
}

// faultyLink is the network of a slot.
type faultyLink struct {
	*faultnet.Net
	c conditions
}

// newLuaEngine returns the engine. It must be called in a bubble.
func newLuaEngine(l listener, seed uint64, n scenario.Net) (*luaEngine, error) {
	m := &luaEngine{listener: l, seed: seed, net: n, redis: miniredis.NewMiniRedis()}
	m.redis.ClockTTL(true) // keys end by the bubble's clock
	m.frozen.spacing = executionTime
	first, err := m.redis.Dial() // it has no socket, only pipes; the first of them makes it start
	if err != nil {
		return nil, err
	}
	m.redis.Server().SetPreHook(m.hook)
	return m, first.Close()
}

// connections is more than a process ever has under way: 64 calls and its presence. go-redis' own number depends on the
// processors, and waiting for a free connection uses timers that it keeps for all bubbles.
const connections = 100

// dialTimeout is that of remote.Open.
const dialTimeout = 200 * time.Millisecond

// luaStore is a remote.Redis with a client of its own.
type luaStore struct {
	*remote.Redis
	client *redis.Client
}

// Close closes the client too.
func (s *luaStore) Close() error { return errors.Join(s.Redis.Close(), s.client.Close()) }

func (m *luaEngine) start(p *process) (instance, error) { return m.newSimulatedProcess(p, m.open) }

func (m *luaEngine) open(number, slot int) (remote.Store, error) {
	dial := func(context.Context, string, string) (net.Conn, error) { return m.dial(number) }
	o := clientOptions(m.link(slot).Dialer(dial))
	o.PoolSize = connections
	client := redis.NewClient(o)
	return &luaStore{remote.NewRedis(client, nil), client}, nil
}

// dial makes a connection that tells Redis whose it is. That is said before the network has it: a client that is
// given a name sends it as one more message, which the shipped ones do not, and which could be lost like the
// others.
func (m *luaEngine) dial(number int) (net.Conn, error) {
	c, err := m.redis.Dial()
	if err != nil {
		return nil, err
	}
	const ok = "+OK\r\n"
	name := strconv.Itoa(number)
	_, err = fmt.Fprintf(c, "*3\r\n$6\r\nCLIENT\r\n$7\r\nSETNAME\r\n$%d\r\n%s\r\n", len(name), name)
	answer := make([]byte, len(ok))
	if err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err == nil && string(answer) != ok {
		err = fmt.Errorf("sim: CLIENT SETNAME was answered with %q", answer)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// clientOptions set a client up as remote.Open does, but for the dialer, which no URL can name.
func clientOptions(dial dialer) *redis.Options {
	o := harness.StrictOptions()
	o.Addrs = []string{"127.0.0.1:6379"} // never dialed, and no name: looking one up leaves the bubble
	o.Dialer = quietly(dial)
	return o.Simple()
}

func (m *luaEngine) link(slot int) *faultyLink {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := len(m.links); n <= slot; n++ {
		w := &faultyLink{Net: faultnet.New(stable.Mix(m.seed ^ stable.Mix(uint64(n))))}
		m.links = append(m.links, w)
		m.set(w)
	}
	return m.links[slot]
}

// set applies all faults to the network of a slot. mu is held. No value is out of range.
func (m *luaEngine) set(w *faultyLink) {
	hole := w.c.holdOut || w.c.holdIn
	_ = w.Set(faultnet.Faults{
		Refuse: m.state.down && !hole, HoldDial: hole, HoldOut: w.c.holdOut, HoldIn: w.c.holdIn,
		Delay: (time.Duration(m.net.RTT) + w.c.delay) / 2, Jitter: time.Duration(m.net.Jitter) + w.c.jitter,
		CutBefore: w.c.cut, CutAfter: w.c.lose,
	})
}

func (m *luaEngine) connect(slot int, c conditions) {
	w := m.link(slot)
	m.mu.Lock()
	defer m.mu.Unlock()
	w.c = c
	m.set(w)
}

func (m *luaEngine) serve(s redisState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dies := s.down && !m.state.down
	if dies {
		m.generation++
	}
	m.state = s
	for _, w := range m.links {
		m.set(w)
		if dies {
			w.Cut()
		}
	}
	if s.frozen {
		m.frozen.shut()
	} else {
		m.frozen.open()
	}
}

func (m *luaEngine) flush()        { m.redis.FlushAll() }
func (m *luaEngine) flushScripts() { m.dispatch(false, "SCRIPT", "FLUSH") }

func (m *luaEngine) evict(keys int, random *rand.Rand) {
	var buckets []string
	for _, k := range m.redis.Keys() {
		if m.redis.Type(k) == "hash" {
			buckets = append(buckets, k)
		}
	}
	for _, b := range sample(buckets, keys, random) {
		m.redis.Del(b)
	}
}

func (m *luaEngine) step(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock, m.moved = m.clock+by, true
}

// close waits for connections that are being dialed, which outlive the call that wanted them, and their client.
func (m *luaEngine) close() error {
	time.Sleep(2 * dialTimeout)
	for _, w := range m.links {
		w.Cut()
	}
	m.redis.Close()
	return nil
}

// hook sees every command before miniredis does, those of scripts too. It returns true if it has answered.
func (m *luaEngine) hook(c *server.Peer, cmd string, args ...string) bool {
	script := (cmd == "EVAL" || cmd == "EVALSHA") && c.ClientName != "" // dispatch has no name
	if !script && cmd != "HELLO" {
		return false
	}
	_, before := m.now()
	m.frozen.pass()
	state, lives := m.now()
	switch {
	case lives != before:
		c.Close() // it waited in the buffers of a Redis that died
		return true
	case !script:
		return false
	case state.refuse != "":
		c.WriteError(refusal(state.refuse))
		return true
	}
	if cmd == "EVAL" {
		m.happened("script_sent")
	}
	process, _ := strconv.Atoi(c.ClientName)
	if call, ok := callIn(args); ok {
		m.execute(m, process, &call, func() (r lua.Reply, ok bool) {
			answer := m.dispatch(c.Resp3, cmd, args...)
			c.WriteRaw(answer)
			if r, ok = replyIn(answer); ok {
				m.answered(process, r.Code, r.Grant)
			}
			return r, ok
		})
		return true
	}
	c.WriteRaw(m.dispatch(c.Resp3, cmd, args...))
	return true
}

func (m *luaEngine) now() (redisState, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.generation
}

// dispatch executes a command by the clock of Redis and returns the reply as Redis would send it.
func (m *luaEngine) dispatch(resp3 bool, cmd string, args ...string) string {
	m.mu.Lock()
	if m.moved {
		m.redis.SetTime(time.Now().Add(m.clock)) // it stands still until the next command, and nobody looks
	}
	m.mu.Unlock()
	var answer bytes.Buffer
	w := bufio.NewWriter(&answer)
	peer := server.NewPeer(w)
	peer.Resp3 = resp3
	m.redis.Server().Dispatch(peer, append([]string{cmd}, args...))
	peer.Flush()
	return answer.String()
}
