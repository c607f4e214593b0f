// Package redistest starts real redis-server processes for tests, and stops them by pid. A server
// dies with the test. It listens on a unix socket and on a loopback port of its own, and keeps
// nothing on disk.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
)

// go-redis writes a line for each connection that it cannot make: hundreds, in which a test's
// verdict drowns.
func init() { logging.Disable() }

// Server is one redis-server process of a test. It is not safe for concurrent use.
type Server struct {
	Addr    string // 127.0.0.1:port
	Socket  string // path of its unix socket
	Port    int
	TLSAddr string // 127.0.0.1:port of StartTLS

	t       testing.TB
	guarded bool     // see user.go
	dir     string   // its working directory
	args    []string // the whole command line
	env     []string // variables besides those of this process
	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd has ended
}

// Start runs a redis-server with extra arguments ("--maxmemory", "10mb") and returns when it
// answers. It is killed at the end of the test.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, OnDatabase, args...)
}

// StartOpen is Start for a test that makes its own users or runs scripts itself. Even in a guarded
// run the server has a single user with all rights.
func StartOpen(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, unguarded, args...)
}

// StartShards starts n servers for the shards of a Ring.
func StartShards(t testing.TB, n int) []*Server {
	t.Helper()
	var all []*Server
	for range n {
		all = append(all, start(t, OnRing))
	}
	return all
}

// unguarded, in place of a part of the rights, means that there is no guard.
const unguarded = ""

// start runs a server. In a guarded run it has the rights of a part besides those that every store
// needs.
func start(t testing.TB, part string, args ...string) *Server {
	t.Helper()
	s := prepare(t, part, args...)
	s.Restart()
	return s
}

// version is what the redis-server in PATH says of itself.
var version = sync.OnceValue(func() string {
	text, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), " v=")
	number, _, _ := strings.Cut(rest, " ")
	return number
})

// Version returns the version of the servers, as in "7.0.15".
func Version(t testing.TB) string {
	t.Helper()
	if version() == "" {
		t.Fatal("redis-server does not say its version")
	}
	return version()
}

// prepare chooses a directory and a port for a server. Without a redis-server a test fails, instead
// of passing without having looked.
func prepare(t testing.TB, part string, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatal("redis-server is not in PATH: `make test` installs it where it may, otherwise install the package " +
			"redis-server (Debian, Ubuntu) or redis (Fedora, Alpine, Homebrew)")
	}
	//nolint:usetesting // a unix socket's path has at most 107 bytes: a test's is longer
	dir := fatal.Get(os.MkdirTemp("", "redis"))(t)
	s := &Server{t: t, dir: dir, Port: FreePort(t), Socket: filepath.Join(dir, "s")}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(dir)
	})
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port))
	s.args = append([]string{
		"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--unixsocket", s.Socket,
		"--dir", dir, "--save", "", "--appendonly", "no", "--logfile", "redis.log", "--daemonize", "no",
	}, args...)
	if strings.HasPrefix(Version(t), "6.") { // which allows that without being told
		for _, flag := range []string{"--enable-debug-command", "--enable-protected-configs"} {
			if i := slices.Index(s.args, flag); i >= 0 {
				s.args = slices.Delete(s.args, i, i+2)
			}
		}
	}
	if part != unguarded && Guarded() {
		s.guard(part)
	}
	return s
}

// Restart starts the process (again) at the same address, empty unless its arguments have it keep
// data, and returns when it answers, within 10 s.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	cmd, done := exec.Command("redis-server", s.args...), make(chan struct{})
	cmd.Env = append(os.Environ(), s.env...)
	cmd.SysProcAttr = DieWithParent()
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("redis-server does not start: %v", err)
	}
	s.cmd, s.done = cmd, done
	go func() { _ = cmd.Wait(); close(done) }()

	for deadline := time.Now().Add(10 * time.Second); !s.answers(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-done:
			text, _ := os.ReadFile(filepath.Join(s.dir, "redis.log"))
			s.t.Fatalf("redis-server ended: %s", text[max(0, len(text)-2000):])
		default:
		}
		if time.Now().After(deadline) {
			s.t.Fatal("redis-server does not answer within 10 s")
		}
	}
}

// answers reports whether the server speaks RESP, whatever it says: NOAUTH and LOADING are answers
// too.
func (s *Server) answers() bool {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
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

// FreePort returns a loopback port that is free, and so is its cluster bus port (+10000). On Linux
// both stay so for all but a server of this test, until its end: other tests take ports at the same
// time, and servers are started anew.
func FreePort(t testing.TB) int {
	t.Helper()
	for range 100 {
		port, release, err := hold(0)
		fatal.If(t, err)
		if port < 55536 {
			if _, also, err := hold(port + 10000); err == nil {
				t.Cleanup(release)
				t.Cleanup(also)
				return port
			}
		}
		release()
	}
	t.Fatal("no free loopback port below 55536")
	return 0
}

// Client returns a client at go-redis' defaults for what the test itself asks of the server, closed
// at its end. A store takes StoreClient.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Calls returns how often the server has executed a command ("evalsha", "eval", …) since its start
// or CONFIG RESETSTAT, from INFO commandstats.
func (s *Server) Calls(c redis.UniversalClient, command string) int64 {
	s.t.Helper()
	info := fatal.Get(c.Info(context.Background(), "commandstats").Result())(s.t)
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

// WaitFor polls real processes, because they offer nothing to wait on.
func WaitFor(t testing.TB, failure string, ready func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ready(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(failure + " within 20 s")
		}
	}
}
