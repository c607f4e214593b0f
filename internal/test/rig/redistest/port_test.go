package redistest_test

import (
	"errors"
	"net"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/redistest"
)

// A port stays a test's own while its server is away: nobody else gets it, who dials it is refused,
// and the server listens there again.
func TestPortIsKept(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere nothing keeps it")
	}
	s := redistest.Start(t)
	for range 3 {
		s.Kill()
		if _, _, err := redistest.Hold(s.Port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another test may have it: %v", err)
		}
		if _, _, err := redistest.Hold(s.Port + 10000); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another test may have the port of its cluster bus: %v", err)
		}
		if _, err := net.Dial("tcp", s.Addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialed: %v", err)
		}
		s.Restart()
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.FreePort(t)))) // a server in Go
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
