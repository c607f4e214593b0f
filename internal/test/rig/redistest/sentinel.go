package redistest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Sentinel is a primary and a replica, watched by one sentinel that decides alone.
type Sentinel struct {
	Name     string // by which the sentinel knows the primary
	Sentinel *Server
	Primary  *Server // at the start
	Replica  *Server
}

// StartSentinel runs the three processes. It returns when the replica follows the primary and the sentinel knows
// both. A primary that is silent for half a second is replaced. All processes are killed at the end of the test.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	ctx := context.Background()
	// By default a first synchronization waits five seconds for further replicas.
	s := &Sentinel{Name: "primary", Primary: Start(t, "--repl-diskless-sync-delay", "0")}
	s.Replica = Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(s.Primary.Port), "--repl-diskless-sync-delay", "0")
	s.Replica.follows()

	s.Sentinel = prepare(t, unguarded)
	config := filepath.Join(s.Sentinel.dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nlogfile redis.log\n"+
		"sentinel monitor %[3]s 127.0.0.1 %[4]d 1\n"+
		"sentinel down-after-milliseconds %[3]s 500\n"+
		"sentinel failover-timeout %[3]s 5000\n",
		s.Sentinel.Port, s.Sentinel.dir, s.Name, s.Primary.Port)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Sentinel.args = []string{config, "--sentinel"}
	s.Sentinel.Restart()
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Sentinel.Addr})
	t.Cleanup(func() { _ = sentinel.Close() })
	WaitFor(t, "the sentinel does not find the replica", func() bool {
		replicas, err := sentinel.Replicas(ctx, s.Name).Result()
		return err == nil && len(replicas) == 1
	})
	return s
}

// follows returns when the server, a replica, has what its primary has.
func (s *Server) follows() {
	s.t.Helper()
	client := s.Client()
	WaitFor(s.t, "a replica does not follow its primary", func() bool {
		info, err := client.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
}
