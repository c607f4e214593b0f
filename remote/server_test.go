package remote_test

import (
	"bytes"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// A node says what it is, in RESP2 and RESP3, and to a user without rights.
func TestServer(t *testing.T) {
	server := redistest.Start(t)
	version := regexp.MustCompile(`^(redis|valkey) \d+\.\d+\.\d+$`)
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, Protocol: protocol})
		defer func() { _ = client.Close() }()
		s := remote.NewRedis(client, nil)
		if got, err := s.Server(t.Context(), time.Minute, s.Node("b")); err != nil || !version.MatchString(got) {
			t.Errorf("RESP%d: %q, %v", protocol, got, err)
		}
		if got, err := s.Server(t.Context(), time.Minute, "another"); err != nil || got != "" {
			t.Errorf("another node is %q, %v", got, err)
		}
	}
	if got, err := remote.NewMemory().Server(t.Context(), 0, "memory"); err != nil || got != "memory" {
		t.Errorf("%q, %v", got, err)
	}
}

// lines is a log that others write to meanwhile.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// What go-redis logs itself goes to the Logger, at DEBUG. A store without a Logger leaves that as it
// is, because the process may have other clients.
func TestClientLogger(t *testing.T) {
	all := new(lines)
	logger := slog.New(slog.NewTextHandler(all, &slog.HandlerOptions{Level: slog.LevelDebug}))
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	s := remote.NewRedis(client, &remote.RedisOptions{Logger: logger})
	t.Cleanup(func() { remote.NewRedis(client, &remote.RedisOptions{Logger: slog.New(slog.DiscardHandler)}) })
	var results [1]remote.Result
	s.Run(t.Context(), time.Second, make([]lua.Call, 1), results[:])
	if lines := all.String(); !strings.Contains(lines, "level=DEBUG") || !strings.Contains(lines, "127.0.0.1:1") {
		t.Errorf("%v, and the Logger has %q", results[0].Err, lines)
	}

	second := fatal.Get(remote.Open("redis://127.0.0.1:2", nil))(t)
	defer second.Close()
	second.Run(t.Context(), time.Second, make([]lua.Call, 1), results[:])
	if lines := all.String(); !strings.Contains(lines, "127.0.0.1:2") {
		t.Errorf("%v, and after Open without a Logger the Logger has %q", results[0].Err, lines)
	}
}
