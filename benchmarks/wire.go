package benchmarks

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Meter counts what clients send to a server. It reads the requests as they are written, so it counts what went over the
// wire: INFO would count the commands that scripts call as well.
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
	return m.wrap(c), nil
}

func (m *Meter) wrap(c net.Conn) net.Conn { return &meteredConn{Conn: c, meter: m} }

// meteredConn is one connection. Only one goroutine at a time writes to a connection of go-redis.
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

// SyscallConn lets go-redis look at the socket before it uses a pooled connection again, as it does without a meter.
func (c *meteredConn) SyscallConn() (syscall.RawConn, error) {
	s, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, net.ErrClosed
	}
	return s.SyscallConn()
}

// requestParser finds the beginnings of requests in a stream of them: *<items>, then $<length> and so many bytes for each.
// It skips what it need not see, and so costs some 100 ns a request.
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

// dialHook puts a meter into a client that dials for itself.
type dialHook struct{ meter *Meter }

func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return h.meter.wrap(c), nil
	}
}

func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
