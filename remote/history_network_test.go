package remote_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// networkFault is what a network does to a request or to its reply.
type networkFault int

const (
	noFault networkFault = iota
	slow                 // the request is on its way for a while, and others overtake it
	unsent               // the connection breaks before the request
	torn                 // it breaks within the request; of several calls the first may be whole
	late                 // the client waits in vain; the request arrives when it has long gone on
	unheard              // the request is executed for certain, and the reply lost
	halved               // the reply breaks off; of several the first may be whole
	// the client hangs up behind its request: the server may still answer, or not look at it any more
	abandoned
	faultKinds int = iota
)

func (f networkFault) String() string {
	return [...]string{"none", "slow", "unsent", "torn", "late", "unheard", "halved", "abandoned"}[f]
}

// slowest is how long a slow request is on its way at most: some round trips to a server on the same machine.
const slowest = 300 * time.Microsecond

// faultyNetwork lies between processes and a server. It counts its faults, and keeps the requests that are to
// arrive late.
type faultyNetwork struct {
	faults  [faultKinds]atomic.Int64
	arrived atomic.Int64 // late

	mu   sync.Mutex
	kept []lateRequest
}

// lateRequest is a request that its client takes for lost, and the connection that it is to arrive over.
type lateRequest struct {
	conn net.Conn
	data []byte
}

// link is one client's way through the network, with chance of its own.
type link struct {
	network *faultyNetwork

	mu     sync.Mutex
	chance *rand.Rand // nil: this way is free of faults
}

// begin gives the link its chance for a history.
func (l *link) begin(chance *rand.Rand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chance = chance
}

// draw decides what happens to the next request, of n bytes, and at which of them.
func (l *link) draw(n int) (networkFault, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.chance == nil {
		return noFault, 0
	}
	fault := noFault
	switch k := l.chance.IntN(100); {
	case k < 50:
	case k < 70:
		fault = slow
	case k < 70+4*(faultKinds-int(unsent)): // the others alike, 4 % each
		fault = unsent + networkFault((k-70)/4)
	}
	l.network.faults[fault].Add(1)
	return fault, l.chance.IntN(n)
}

func (l *link) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &faultyConn{Conn: conn, link: l}, nil
}

// faultyConn is a connection through the network. Only what carries a script is disturbed: a handshake that fails would
// be one more way not to send a call.
type faultyConn struct {
	net.Conn
	link  *link
	fault networkFault // of the request under way
	part  int          // of the request, or of its reply: as far as it gets
	kept  atomic.Bool  // the connection is the network's now
}

// Write sends a request, as far as the network lets it.
func (c *faultyConn) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte("eval")) {
		return c.Conn.Write(p)
	}
	c.fault, c.part = c.link.draw(len(p))
	switch c.fault {
	case slow:
		// the network's delay: nothing is waited for
		time.Sleep(slowest * time.Duration(c.part) / time.Duration(len(p)))
	case unsent:
		return 0, c.cut(syscall.ECONNRESET)
	case torn:
		n, _ := c.Conn.Write(p[:c.part])
		return n, c.cut(syscall.EPIPE)
	case late:
		c.kept.Store(true)
		c.link.network.keep(lateRequest{c.Conn, slices.Clone(p)})
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Read receives a reply, as far as the network lets it through.
func (c *faultyConn) Read(p []byte) (int, error) {
	switch c.fault {
	case late:
		return 0, os.ErrDeadlineExceeded // at once: whoever waits learns nothing by waiting
	case unheard:
		_, _ = c.Conn.Read(p) // the reply is there, so the request was executed
		return 0, c.cut(io.EOF)
	case halved:
		n, err := c.Conn.Read(p)
		if err != nil {
			return n, err
		}
		c.fault = abandoned // nothing follows
		return c.part % n, nil
	case abandoned:
		return 0, c.cut(io.EOF)
	}
	return c.Conn.Read(p)
}

// Close closes the connection, unless a request is to arrive over it yet.
func (c *faultyConn) Close() error {
	if c.kept.Load() {
		return nil
	}
	return c.Conn.Close()
}

// cut breaks the connection and returns how the client learns of it.
func (c *faultyConn) cut(err error) error {
	_ = c.Conn.Close()
	return err
}

// keep holds a request back.
func (n *faultyNetwork) keep(r lateRequest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = append(n.kept, r)
}

// deliver lets one of the late requests arrive, and be executed. Nobody hears the reply.
func (n *faultyNetwork) deliver(chance *rand.Rand) {
	n.mu.Lock()
	if len(n.kept) == 0 {
		n.mu.Unlock()
		return
	}
	i := chance.IntN(len(n.kept))
	r := n.kept[i]
	n.kept = slices.Delete(n.kept, i, i+1)
	n.mu.Unlock()
	_ = r.conn.SetDeadline(time.Now().Add(historyPatience)) // the client's own may have passed
	if _, err := r.conn.Write(r.data); err == nil {
		if _, err = r.conn.Read(make([]byte, 1)); err == nil {
			n.arrived.Add(1)
		}
	}
	_ = r.conn.Close()
}

// lose makes the requests that have not arrived yet be lost.
func (n *faultyNetwork) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.kept {
		_ = r.conn.Close()
	}
	n.kept = nil
}
