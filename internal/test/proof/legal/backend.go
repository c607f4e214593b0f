package legal

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/manynodes"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// Backend is a store with an operator's actions. A nil action is not possible.
type Backend struct {
	Store  remote.Store
	Nodes  *manynodes.Nodes       // that may have its place; nil if it has one node
	Step   func(by time.Duration) // sets its clock
	Tick   func()                 // called before each call
	Forget func()                 // makes it forget its scripts
	Lose   func(bucket string)    // makes it lose a bucket
	Close  func()
}

// OnMemory returns a backend with the model of the scripts.
func OnMemory() *Backend {
	n := manynodes.New()
	m := n.Kept()
	return &Backend{Store: m, Nodes: n, Step: n.Step, Forget: func() {}, Lose: m.Del, Close: func() { _ = m.Close() }}
}

// OnScripts returns a backend with the shipped scripts in another Lua, through go-redis. Its clock
// is that of the bubble, so it must be made in the bubble in which it is used.
func OnScripts() *Backend {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	first, err := m.Dial() // it has no socket, only pipes; the first one starts it
	if err != nil {
		panic(fmt.Sprintf("legal: no miniredis: %v", err))
	}
	_ = first.Close()
	client := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // never dialed
		// The network reads while it writes, as a socket does: else both ends of a pipe write for
		// ever, when the first call of a pipeline is answered while the second is being sent.
		Dialer: faultnet.New(1).Dialer(func(context.Context, string, string) (net.Conn, error) { return m.Dial() }),
		// These are the settings of remote.Open. go-redis' own number of connections depends on the
		// processors.
		MaxRetries: -1, DialerRetries: 1, PoolSize: 100, PipelinePoolSize: -1, ContextTimeoutEnabled: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	do := func(cmd string, args ...string) {
		var answer bytes.Buffer
		peer := server.NewPeer(bufio.NewWriter(&answer))
		m.Server().Dispatch(peer, append([]string{cmd}, args...))
	}
	c := &clock{set: m.SetTime}
	return &Backend{
		Store: remote.NewRedis(client, nil), Step: c.step, Tick: c.tick,
		Forget: func() { do("SCRIPT", "FLUSH") },
		Lose:   func(bucket string) { do("DEL", bucket) },
		Close:  func() { _ = client.Close(); m.Close() },
	}
}

// OnRedis returns a backend with a real server, whose clock is never set. Its names begin with
// prefix.
func OnRedis(client *redis.Client, prefix string) *Backend {
	ctx := context.Background()
	return &Backend{
		Store:  remote.NewRedis(client, &remote.RedisOptions{Prefix: prefix}),
		Forget: func() { client.ScriptFlush(ctx) },
		Lose:   func(bucket string) { client.Del(ctx, bucket) },
		Close:  func() {},
	}
}

// clock sets miniredis' clock before each call, because it stands still once it was set.
type clock struct {
	set func(time.Time)
	mu  sync.Mutex
	by  time.Duration
}

func (c *clock) step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by += by
}

func (c *clock) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by != 0 {
		c.set(time.Now().Add(c.by))
	}
}

// mostNodes is how many nodes a store has at most, at different times.
const mostNodes = 4

// move draws a step that moves the slots.
func (d *drawer) move(p *Plan) []Step {
	s := Step{Verb: Move, After: d.after(second), Key: d.IntN(mostNodes), N: 1 + d.IntN(3)}
	if p.Class != Calm && d.one(4) {
		s.N = 0
	}
	return []Step{s}
}

// move gives the slots to other nodes: N of them, from the one with number Key on. Without any the
// store is down.
func (w *player) move(s *Step) {
	if n := w.backend.Nodes; n != nil && w.plan.Nodes > 0 {
		w.enter(0)
		all := manynodes.Names(mostNodes)
		n.Share(slices.Concat(all, all)[s.Key : s.Key+s.N]...)
	}
}

// store returns the store of a new process.
func (w *player) store() remote.Store {
	if w.backend.Nodes == nil || w.plan.Nodes == 0 {
		return w.backend.Store
	}
	return w.backend.Nodes.Cluster()
}

// several reports whether the store has several nodes, and their map has to be found.
func (w *player) several() bool { return w.backend.Nodes != nil && w.plan.Nodes > 0 }

// withoutNode reports whether the store has no node now.
func (w *player) withoutNode() bool { return w.several() && len(w.backend.Nodes.Ring().Nodes()) == 0 }
