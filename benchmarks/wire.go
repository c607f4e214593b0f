package benchmarks

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Meter counts what clients send to a server. It reads the requests as they are written, so it counts what is on
// the wire. INFO would also count the commands that scripts call.
type Meter struct {
	commands atomic.Int64
	flights  atomic.Int64 // writes: round trips, unless a write was split
}

// Dial connects to addr and counts what is sent.
func (m *Meter) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &meteredConn{Conn: c, meter: m}, nil
}

// meteredConn is one connection. go-redis writes to a connection from one goroutine at a time.
type meteredConn struct {
	net.Conn
	meter  *Meter
	parser requestParser
}

func (c *meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.meter.flights.Add(1)
	c.meter.commands.Add(c.parser.count(b[:n]))
	return n, err
}

// SyscallConn lets go-redis check the socket before it reuses a pooled connection, as it does without a meter.
func (c *meteredConn) SyscallConn() (syscall.RawConn, error) {
	s, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, net.ErrClosed
	}
	return s.SyscallConn()
}

// requestParser finds the beginnings of requests in a stream: *<items>, then $<length> and that many bytes for
// each. It skips the data, so it costs about 100 ns per request.
type requestParser struct {
	kind   byte // of the header that is being read
	number int
	skip   int // bytes that are data
}

func (p *requestParser) count(b []byte) (requests int64) {
	for len(b) > 0 {
		if p.skip > 0 {
			n := min(p.skip, len(b))
			b, p.skip = b[n:], p.skip-n
			continue
		}
		switch c := b[0]; c {
		case '*', '$':
			p.kind, p.number = c, 0
		case '\r':
		case '\n':
			if p.kind == '*' {
				requests++
			} else {
				p.skip = p.number + len("\r\n")
			}
		default:
			p.number = p.number*10 + int(c-'0')
		}
		b = b[1:]
	}
	return requests
}
