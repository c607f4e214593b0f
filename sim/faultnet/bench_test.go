package faultnet

import (
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkRoundTrip is 64 bytes there and back, with a deadline for each call as go-redis sets it: over a bare
// connection, and over one that is wrapped and has no faults.
func BenchmarkRoundTrip(b *testing.B) {
	for _, network := range []string{"tcp", "unix", "pipe"} {
		for _, wrapped := range []bool{false, true} {
			name := network + "/bare"
			if wrapped {
				name = network + "/wrapped"
			}
			b.Run(name, func(b *testing.B) {
				near, far, err := pair(network)
				if err != nil {
					b.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = io.CopyBuffer(struct{ io.Writer }{far}, struct{ io.Reader }{far}, make([]byte, 64))
					_ = far.Close()
				}()
				if wrapped {
					near = New(1).Conn(near)
				}
				trip(b, near)
				_ = near.Close()
				<-done
			})
		}
	}
}

// BenchmarkCalls is the same over a connection that costs nothing: what a wrapper adds to two calls and two deadlines, and
// nothing of the noise of a machine.
func BenchmarkCalls(b *testing.B) {
	b.Run("bare", func(b *testing.B) { trip(b, nothing{}) })
	b.Run("wrapped", func(b *testing.B) { trip(b, New(1).Conn(nothing{})) })
}

// nothing is a connection that is always ready.
type nothing struct{ net.Conn }

func (nothing) Read(p []byte) (int, error)       { return len(p), nil }
func (nothing) Write(p []byte) (int, error)      { return len(p), nil }
func (nothing) SetReadDeadline(time.Time) error  { return nil }
func (nothing) SetWriteDeadline(time.Time) error { return nil }

func trip(b *testing.B, c net.Conn) {
	buf := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			b.Fatal(err)
		}
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}
