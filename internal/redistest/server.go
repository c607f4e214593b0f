// Package redistest starts real redis-server processes for tests, and stops them by pid.
//
// A server listens on a unix socket and on a loopback port of its own, keeps nothing on disk, and dies with the test.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Missing is what a test says when there is no redis-server: it fails instead of passing without having looked.
const Missing = "redis-server is not in PATH: `make test` installs it where it may, " +
	"otherwise install the package redis-server (Debian, Ubuntu) or redis (Fedora, Alpine, Homebrew)"

// Server is one redis-server process.
type Server struct {
	Addr    string // 127.0.0.1:port
	Socket  string // path of its unix socket
	TLSAddr string // 127.0.0.1:port of StartTLS
	Port    int

	t       testing.TB
	args    []string // all of the command line
	env     []string // besides this process' own
	dir     string
	guarded bool // see user.go
	cmd     *exec.Cmd
	done    chan struct{}
}

// Start runs a redis-server with extra arguments ("--maxmemory", "10mb") and returns when it answers. It is killed at
// the end of the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, args, OnDatabase)
}

// StartOpen is Start for a test that brings users of its own, or that runs scripts by its own hand: in a guarded run too
// there is one user, who may do everything.
func StartOpen(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, nil, args, unguarded)
}

// StartOpenEnv is StartOpen with variables in the environment of the process, besides this one's.
func StartOpenEnv(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return start(t, env, args, unguarded)
}

// StartEnv is Start with variables in the environment of the process, besides this one's.
func StartEnv(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return start(t, env, args, OnDatabase)
}

// StartShards starts n servers that may be the shards of a Ring.
func StartShards(t testing.TB, n int) []*Server {
	t.Helper()
	var all []*Server
	for range n {
		all = append(all, start(t, nil, nil, OnRing))
	}
	return all
}

// unguarded stands for a part of the rights where there is no guard.
const unguarded = ""

// start runs a server, in a guarded run with the rights of a part besides those that every store needs.
func start(t testing.TB, env, args []string, part string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal(Missing)
	}
	s := prepare(t)
	s.env = env
	s.args = append([]string{
		"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--unixsocket", s.Socket,
		"--dir", s.dir, "--save", "", "--appendonly", "no", "--logfile", "redis.log", "--daemonize", "no",
	}, args...)
	if part != unguarded && Guarded() {
		s.guard(part)
	}
	s.Restart()
	t.Cleanup(s.Kill)
	return s
}

// prepare chooses a directory and a port for a server.
func prepare(t testing.TB) *Server {
	t.Helper()
	// Not t.TempDir: the path of a unix socket may have 107 bytes at most.
	dir, err := os.MkdirTemp("", "redis") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &Server{t: t, dir: dir, Port: FreePort(t), Socket: filepath.Join(dir, "s")}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	return s
}

// Restart starts the process (again), empty, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	cmd := exec.Command("redis-server", s.args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.SysProcAttr = DieWithParent()
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("redis-server does not start: %v", err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() { _ = cmd.Wait(); close(done) }()

	// Ready is when it speaks RESP, whatever it says: NOAUTH and LOADING are answers too.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		select {
		case <-done:
			text, _ := os.ReadFile(filepath.Join(s.dir, "redis.log"))
			s.t.Fatalf("redis-server ended: %s", tail(string(text)))
		default:
		}
		if speaks(s.Addr) {
			return
		}
		time.Sleep(5 * time.Millisecond) // a real process: there is nothing else to wait on
	}
	s.t.Fatal("redis-server does not answer within 10 s")
}

func speaks(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err = c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	n, err := c.Read(make([]byte, 64))
	return err == nil && n > 0
}

// Kill ends the process at once (SIGKILL) and waits for it. Killing twice is fine.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.done
	s.cmd = nil
}

// Pause freezes the process (SIGSTOP); its connections stay open and silent.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume thaws the process (SIGCONT).
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Client returns a client at go-redis' defaults for what the test itself asks of the server, closed at its end. A store
// takes StoreClient.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Calls reports how often the server has executed a command since its start or CONFIG RESETSTAT, from INFO
// commandstats: "evalsha", "eval", …
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

// FreePort returns a loopback port that was free a moment ago, and so was its cluster bus port (+10000).
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port >= 55536 {
			continue
		}
		bus, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+10000)))
		if err == nil {
			_ = bus.Close()
			return port
		}
	}
	t.Fatal("no free loopback port below 55536")
	return 0
}

func tail(s string) string { return s[max(0, len(s)-2000):] }
