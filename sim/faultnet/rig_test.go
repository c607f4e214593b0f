package faultnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// window is how many bytes are under way in each direction before a writer waits.
const window = 256 << 10

// rig is a connection of a network, a pipe in a bubble, and its far end. TestConn and TestStorm
// have sockets.
type rig struct {
	*testing.T
	*faultnet.Net
	near net.Conn
	far  net.Conn // of the connection that was dialed last

	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func inBubble(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, Net: faultnet.New(1)}
		r.dial = r.Dialer(func(context.Context, string, string) (near net.Conn, err error) {
			near, r.far = net.Pipe()
			return near, nil
		})
		near := fatal.Get(r.dial(t.Context(), "tcp", "127.0.0.1:1"))(t)
		r.near = near
		far := r.far
		defer func() {
			r.Net.Cut()
			_, _ = near.Close(), far.Close()
		}()
		test(r)
	})
}

func (r *rig) set(f faultnet.Faults) {
	r.Helper()
	fatal.If(r, r.Set(f))
}

// took holds a time against what was wanted.
func (r *rig) took(what string, start time.Time, want time.Duration) {
	r.Helper()
	if d := time.Since(start); d != want {
		r.Errorf("%s took %v, want %v", what, d, want)
	}
}

// say writes a text. Somebody has to be reading it, unless a fault takes it.
func (r *rig) say(c net.Conn, text string) {
	r.Helper()
	if n, err := c.Write([]byte(text)); n != len(text) || err != nil {
		r.Fatalf("Write: %d, %v", n, err)
	}
}

// hear wants a text to be read, soon.
func (r *rig) hear(c net.Conn, text string) {
	r.Helper()
	r.must(c.SetReadDeadline(time.Now().Add(10 * time.Second)))
	buf := make([]byte, len(text))
	if n, err := io.ReadFull(c, buf); err != nil || string(buf) != text {
		r.Fatalf("heard %q, %v; want %q", buf[:n], err, text)
	}
	r.must(c.SetReadDeadline(time.Time{}))
}

// pass sends a text from one end to the other.
func (r *rig) pass(from, to net.Conn, text string) {
	r.Helper()
	done := r.start(func() error { _, err := from.Write([]byte(text)); return err })
	r.hear(to, text)
	if err := <-done; err != nil {
		r.Fatalf("Write: %v", err)
	}
}

// silent wants nothing to be read for a while, and the deadline to be kept.
func (r *rig) silent(c net.Conn, d time.Duration) {
	r.Helper()
	start := time.Now()
	r.must(c.SetReadDeadline(start.Add(d)))
	n, err := c.Read(make([]byte, 10))
	if n != 0 {
		r.Fatalf("Read: %d", n)
	}
	r.timedOut("Read", err)
	r.took("Read", start, d)
	r.must(c.SetReadDeadline(time.Time{}))
}

func (r *rig) timedOut(what string, err error) {
	r.Helper()
	if timeout := net.Error(nil); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		r.Errorf("%s: %v, want a timeout", what, err)
	}
}

// reset wants an error to be that of a connection that was cut.
func (r *rig) reset(what string, err error) {
	r.Helper()
	if op := (*net.OpError)(nil); !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Timeout() {
		r.Errorf("%s: %v, want a reset", what, err)
	}
}

// start runs a call in the background and returns when it waits for something.
func (r *rig) start(call func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- call() }()
	synctest.Wait()
	return done
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// counted wants what happened to be just that, dials aside.
func (r *rig) counted(want faultnet.Counts) {
	r.Helper()
	got := r.Counts()
	want.Dialed = got.Dialed
	if got != want {
		r.Errorf("counts\n%+v, want\n%+v", got, want)
	}
}
