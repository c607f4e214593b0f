package remote_test

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// cutter dials connections that break when a script's reply arrives: it is executed, and nobody
// hears of it.
type cutter struct {
	word []byte // of requests whose reply is cut
	addr string // of the server whose replies are cut; empty: any
	on   atomic.Bool
	cuts atomic.Int64 // requests written, to be cut
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	faults := faultnet.New(1) // of this connection alone: others are to get through their handshakes
	conn, err := faults.Dialer(nil)(ctx, network, addr)
	if err != nil || c.addr != "" && c.addr != addr {
		return conn, err
	}
	return &cutConn{Conn: conn, faults: faults, by: c}, nil
}

// cutConn chooses by what is written; the rest is faultnet's.
type cutConn struct {
	net.Conn
	faults *faultnet.Net
	by     *cutter
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.by.on.Load() && bytes.Contains(p, c.by.word) {
		c.by.cuts.Add(1)
		if err := c.faults.Set(faultnet.Faults{CutAfter: 1}); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}

func TestCutReplyChargesOnce(t *testing.T) {
	shards := redistest.StartShards(t, 2)
	server := shards[0]
	for name, client := range map[string]func(*cutter) redis.UniversalClient{
		"client": func(c *cutter) redis.UniversalClient {
			return redis.NewClient(server.Options(redis.Options{Dialer: c.dial}))
		},
		"foreign": func(c *cutter) redis.UniversalClient {
			return foreign{redis.NewClient(server.Options(redis.Options{Dialer: c.dial}))}
		},
		"ring": func(c *cutter) redis.UniversalClient {
			return redis.NewRing(redistest.RingOptions(shards, redis.RingOptions{Dialer: c.dial}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cut := &cutter{word: []byte("evalsha")}
			c := client(cut) // at go-redis' defaults, but for the dialer
			defer c.Close()
			s := remote.NewRedis(c, &remote.RedisOptions{Prefix: "tl:" + name + ":"})
			// Before the script is known there would be a NOSCRIPT to cut.
			for _, server := range shards {
				if err := server.Client().ScriptLoad(t.Context(), lua.TokenBucket.Script().Source).Err(); err != nil {
					t.Fatal(err)
				}
			}

			cut.on.Store(true)
			calls, results := []lua.Call{takeOne(s, "a"), takeOne(s, "b"), takeOne(s, "c")}, make([]remote.Result, 3)
			s.Run(t.Context(), patience, calls, results)
			cut.on.Store(false)
			for i, r := range results {
				if r.Err == nil {
					t.Errorf("call %d: %+v", i, r)
				}
			}
			if cut.cuts.Load() == 0 {
				t.Error("nothing was cut")
			}
			for _, key := range []string{"a", "b", "c"} {
				if n := charged(t, s, key); n != 1 {
					t.Errorf("%s was charged %d times", key, n)
				}
			}

			// The same through the same client, but not by the store: this test can fail.
			cut.on.Store(true)
			args := remote.Arguments(&lua.Call{
				Bucket: s.Key("test", "plain"), Cap: full, Period: 1, Want: 1, Min: 1, TTL: 1,
				Fleet: 1,
			})
			err := c.EvalSha(t.Context(), lua.TokenBucket.Script().SHA, []string{s.Key("test", "plain")},
				args...).Err()
			cut.on.Store(false)
			if n := charged(t, s, "plain"); err == nil || n < 2 {
				t.Errorf("a plain EvalSha: charged %d times, %v", n, err)
			} else {
				t.Logf("a plain EvalSha charged %d times", n)
			}
		})
	}
}

func TestCutPresence(t *testing.T) {
	server := redistest.Start(t)
	cut := &cutter{word: []byte("eval")}
	s := remote.NewRedis(serverClient(t, server.Options(redis.Options{Dialer: cut.dial})), nil)
	cut.on.Store(true)
	if _, err := s.Presence(t.Context(), patience, s.Node(""), remote.Process{ID: "me", TTL: time.Minute}); err == nil {
		t.Error("answered")
	}
	if n := cut.cuts.Load(); n != 1 {
		t.Errorf("sent %d times", n)
	}
}
