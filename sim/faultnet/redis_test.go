package faultnet

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
)

// patience is that of the client.
const patience = 200 * ms

// redisRows are what go-redis and Redis make of each fault. Each asks for one INCR over a connection that is open already,
// and goes on until its own timeout.
var redisRows = []struct {
	name     string
	faults   Faults
	cut      bool // before the call, so that it dials
	wrong    func(error) bool
	executed int
}{
	{name: "none", executed: 1},
	{name: "slow", faults: Faults{Delay: 5 * ms, Jitter: 5 * ms, Rate: 1e6}, executed: 1},
	{name: "too slow", faults: Faults{Delay: patience * 5 / 4}, wrong: isTimeout, executed: 1}, // when nobody waits any more
	{name: "requests lost", faults: Faults{HoldOut: true}, wrong: isTimeout},
	{name: "replies lost", faults: Faults{HoldIn: true}, wrong: isTimeout, executed: 1},
	{name: "cut before", faults: Faults{CutBefore: 1}, wrong: is(syscall.ECONNRESET)},
	{name: "cut after", faults: Faults{CutAfter: 1}, wrong: is(syscall.ECONNRESET), executed: 1},
	{name: "refused", faults: Faults{Refuse: true}, cut: true, wrong: is(syscall.ECONNREFUSED)},
	{name: "no answer to a dial", faults: Faults{HoldDial: true}, cut: true, wrong: is(context.DeadlineExceeded)},
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

func TestRedis(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	count := func(key string) int {
		n, err := direct.Get(t.Context(), key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
		return n
	}
	for network, addr := range map[string]string{"tcp": server.Addr, "unix": server.Socket} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			onRedis(t, network, addr, nil, count)
		})
	}
}

func TestMiniredis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis() // never started: a bubble has no sockets
		defer m.Close()
		dial := func(context.Context, string, string) (net.Conn, error) { return m.Dial() }
		onRedis(t, "tcp", "127.0.0.1:6379", dial, func(key string) int {
			text, _ := m.Get(key) // an error: there is none yet
			return len(text)      // 0 or "1"
		})
	})
}

func onRedis(t *testing.T, network, addr string, dial func(context.Context, string, string) (net.Conn, error), count func(key string) int) {
	for _, row := range redisRows {
		n := New(1)
		c := redis.NewClient(&redis.Options{
			Network: network, Addr: addr, Dialer: n.Dialer(dial),
			MaxRetries: -1, DialerRetries: 1, DialTimeout: patience, ReadTimeout: patience, PoolSize: 4, // a pool with as many failed dials pauses for a second
			ContextTimeoutEnabled:    true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		if err := c.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if row.cut {
			n.Cut()
			_ = c.Ping(t.Context()).Err() // the cut is noticed
		}
		if err := n.Set(row.faults); err != nil {
			t.Fatal(err)
		}
		key := network + row.name
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := c.Incr(ctx, key).Err()
		cancel()
		if row.wrong == nil && err != nil || row.wrong != nil && (err == nil || !row.wrong(err)) {
			t.Errorf("%s: %v", row.name, err)
		}
		if row.faults != (Faults{}) && n.Counts() == (Counts{Dialed: n.Counts().Dialed}) {
			t.Errorf("%s: no fault occurred", row.name)
		}
		// It is executed when it has arrived and the server has come to it, which nobody is told. In a bubble all that can
		// happen happens within the first pause.
		time.Sleep(ms)
		for start := time.Now(); count(key) < row.executed && time.Since(start) < 10*time.Second; {
			time.Sleep(ms)
		}
		if got := count(key); got != row.executed {
			t.Errorf("%s: executed %d times, want %d", row.name, got, row.executed)
		}
		if err := n.Set(Faults{}); err != nil {
			t.Fatal(err)
		}
		// Where the client lost its connection it dials, once a cut that it had not noticed is.
		for range 2 {
			if err = c.Ping(t.Context()).Err(); err == nil {
				break
			}
		}
		if err != nil {
			t.Errorf("%s: after it: %v", row.name, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		n.Cut()
	}
}
