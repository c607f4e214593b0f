package benchmarks

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Server is the redis-server of one contestant, with a meter for all requests to it.
type Server struct {
	*redistest.Server
	Meter  Meter
	opened bool // a store of its own asks it, whose client has no hooks: Redis counts the scripts

	operator *redis.Client // not metered
}

// StartServer starts a server that ends with the test or benchmark.
func StartServer(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{Server: redistest.Start(tb)}
	s.operator = s.Server.Client()
	return s
}

// peerClient returns a metered client with go-redis' default settings, as a peer's user has.
func (s *Server) peerClient(tb testing.TB) *redis.Client {
	return s.dial(tb, &redis.Options{})
}

// ownStore returns a store as most users have it, with the limiter's longer timeout.
func (s *Server) ownStore(tb testing.TB) remote.Store {
	tb.Helper()
	s.opened = true
	store := fatal.Get(remote.Open("redis://"+s.Addr+"?dial_timeout=1s&read_timeout=1s&write_timeout=1s&pool_timeout=1s", nil))(tb)
	tb.Cleanup(func() { _ = store.Close() })
	return store
}

func (s *Server) dial(tb testing.TB, o *redis.Options) *redis.Client {
	o.Addr = s.Addr
	c := redis.NewClient(o)
	c.AddHook(&s.Meter)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// sent returns how many commands the meter has counted, and an error if Redis has executed more
// scripts than that: then a client is not metered, or its hooks do not see all. Both are counted
// from the start of the server, so a call that is under way makes no difference.
func (s *Server) sent() (int64, error) {
	executed := s.Calls(s.operator, "evalsha") + s.Calls(s.operator, "eval")
	if s.opened {
		return executed, nil
	}
	counted := s.Meter.commands.Load()
	if counted < executed {
		return counted, fmt.Errorf("the meter has counted %d commands, and Redis has executed %d scripts", counted, executed)
	}
	return counted, nil
}

// commands is sent for a run that must not go on without a meter.
func (s *Server) commands(tb testing.TB) int64 {
	tb.Helper()
	n, err := s.sent()
	if err != nil {
		tb.Error(err)
	}
	return n
}

// Keys returns the number of keys in the server.
func (s *Server) Keys(tb testing.TB) int64 {
	tb.Helper()
	n, err := s.operator.DBSize(context.Background()).Result()
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// info returns a figure of a section of INFO.
func (s *Server) info(tb testing.TB, section, name string) float64 {
	tb.Helper()
	x, err := strconv.ParseFloat(s.operator.InfoMap(context.Background(), section).Item(section, name), 64)
	if err != nil {
		tb.Fatalf("INFO %s: %s: %v", section, name, err)
	}
	return x
}

// CPU returns the processor time that the server's process has used, in user and system mode.
func (s *Server) CPU(tb testing.TB) time.Duration {
	tb.Helper()
	return time.Duration((s.info(tb, "CPU", "used_cpu_sys") + s.info(tb, "CPU", "used_cpu_user")) * float64(time.Second))
}
