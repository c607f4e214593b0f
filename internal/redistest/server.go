// Package redistest starts real redis-server processes for tests, and stops them by pid. A server dies with the test.
package redistest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/redisserver"
)

// Server is one redis-server process of a test.
type Server struct {
	*redisserver.Server
	TLSAddr string // 127.0.0.1:port of StartTLS

	t       testing.TB
	guarded bool // see user.go
}

// Start runs a redis-server with extra arguments ("--maxmemory", "10mb") and returns when it answers. It is killed
// at the end of the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, args, OnDatabase)
}

// StartOpen is Start for a test that makes its own users or runs scripts itself. Even in a guarded run the server
// has a single user with all rights.
func StartOpen(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, args, unguarded)
}

// StartOpenEnv is StartOpen with further variables in the environment of the process.
func StartOpenEnv(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return start(t, env, args, unguarded)
}

// StartEnv is Start with further variables in the environment of the process.
func StartEnv(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return start(t, env, args, OnDatabase)
}

// StartShards starts n servers for the shards of a Ring.
func StartShards(t testing.TB, n int) []*Server {
	t.Helper()
	var all []*Server
	for range n {
		all = append(all, start(t, nil, nil, OnRing))
	}
	return all
}

// unguarded, in place of a part of the rights, means that there is no guard.
const unguarded = ""

// start runs a server. In a guarded run it has the rights of a part besides those that every store needs.
func start(t testing.TB, env, args []string, part string) *Server {
	t.Helper()
	s := prepare(t)
	s.Env, s.Args = env, append(s.Args, args...)
	if part != unguarded && Guarded() {
		s.guard(part)
	}
	s.Restart()
	return s
}

// prepare chooses a directory and a port for a server. Without a redis-server a test fails, instead of passing without
// having looked.
func prepare(t testing.TB) *Server {
	t.Helper()
	s, err := redisserver.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return &Server{Server: s, t: t}
}

// Restart starts the process (again), empty, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.Run(); err != nil {
		s.t.Fatal(err)
	}
}

// Client returns a client at go-redis' defaults for what the test itself asks of the server, closed at its end. A store
// takes StoreClient.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Calls returns how often the server has executed a command ("evalsha", "eval", …) since its start or CONFIG
// RESETSTAT, from INFO commandstats.
func (s *Server) Calls(c redis.UniversalClient, command string) int64 {
	s.t.Helper()
	info, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		var n int64
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":"); ok {
			if _, err := fmt.Sscanf(rest, "calls=%d,", &n); err == nil {
				return n
			}
		}
	}
	return 0
}

// Clock sets the time of day of the servers that were started with its Env.
type Clock = redisserver.Clock

// ErrNoCompiler says why the clock of a server cannot be set.
var ErrNoCompiler = redisserver.ErrNoCompiler

// NewClock compiles what sets the clock of a server. The error may be ErrNoCompiler.
func NewClock(t testing.TB) (*Clock, error) {
	t.Helper()
	return redisserver.NewClock(t.TempDir())
}
