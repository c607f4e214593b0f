package faultnet

import (
	"io"
	"net"
	"testing"
	"time"
)

// BenchmarkCalls is what a wrapper without faults adds to two calls and two deadlines. The connection below costs
// nothing, so the noise of a machine is not in it.
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
