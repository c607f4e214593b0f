// Package redisserver runs redis-server processes, for tests (package redistest) and for the simulator.
//
// A server listens on a unix socket and on a loopback port of its own, and keeps nothing on disk.
package redisserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// ErrMissing says that there is no redis-server.
var ErrMissing = errors.New("redis-server is not in PATH: `make test` installs it where it may, " +
	"otherwise install the package redis-server (Debian, Ubuntu) or redis (Fedora, Alpine, Homebrew)")

// Installed returns nil if there is a redis-server, or ErrMissing.
func Installed() error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return ErrMissing
	}
	return nil
}

// Server is one redis-server process. It is not safe for concurrent use.
type Server struct {
	Addr   string // 127.0.0.1:port
	Socket string // path of its unix socket
	Port   int
	Dir    string   // its working directory
	Args   []string // the whole command line
	Env    []string // variables besides those of this process

	cmd  *exec.Cmd
	done chan struct{}
}

// New chooses a directory and a port for a server, and does not start it. The caller must call Close.
func New() (*Server, error) {
	if err := Installed(); err != nil {
		return nil, err
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	// The path of a unix socket has at most 107 bytes: the directory of a test would be too long.
	dir, err := os.MkdirTemp("", "redis")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, Port: port, Socket: filepath.Join(dir, "s")}
	s.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s.Args = []string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--unixsocket", s.Socket,
		"--dir", dir, "--save", "", "--appendonly", "no", "--logfile", "redis.log", "--daemonize", "no",
	}
	return s, nil
}

// Start runs a server with variables and arguments of its own, and returns when it answers. The caller must call Close.
func Start(env, args []string) (*Server, error) {
	s, err := New()
	if err != nil {
		return nil, err
	}
	s.Env, s.Args = env, append(s.Args, args...)
	if err := s.Run(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Run starts the process (again), empty, at the same address, and returns when it answers, within 10 s.
func (s *Server) Run() error {
	s.Kill()
	cmd := exec.Command("redis-server", s.Args...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.SysProcAttr = DieWithParent()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("redis-server does not start: %w", err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	go func() { _ = cmd.Wait(); close(done) }()

	// Ready is when it speaks RESP, whatever it says: NOAUTH and LOADING are answers too.
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		select {
		case <-done:
			text, _ := os.ReadFile(filepath.Join(s.Dir, "redis.log"))
			return fmt.Errorf("redis-server ended: %s", text[max(0, len(text)-2000):])
		default:
		}
		if speaks(s.Addr) {
			return nil
		}
		time.Sleep(5 * time.Millisecond) // a real process: there is nothing else to wait on
	}
	return errors.New("redis-server does not answer within 10 s")
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

// Close kills the process and removes its directory.
func (s *Server) Close() {
	s.Kill()
	_ = os.RemoveAll(s.Dir)
}

// Pause freezes the process (SIGSTOP); its connections stay open and silent.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume thaws the process (SIGCONT).
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// FreePort returns a loopback port that was free a moment ago, and so was its cluster bus port (+10000).
func FreePort() (int, error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close()
		if port >= 55536 {
			continue
		}
		bus, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+10000)))
		if err == nil {
			_ = bus.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free loopback port below 55536")
}
