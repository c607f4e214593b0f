package faultnet_test

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/tiered-limiter/tiered-limiter/sim/faultnet"
)

// A wrapped connection is one: without faults, and with those that only take time.
func TestConn(t *testing.T) {
	for _, c := range []struct {
		network string
		faults  faultnet.Faults
		long    bool
	}{
		{network: "tcp"},
		{network: "pipe"},
		{network: "unix", long: true},
		{network: "tcp", faults: faultnet.Faults{Delay: ms / 10, Jitter: ms / 10}},
		{network: "pipe", faults: faultnet.Faults{Delay: ms / 10, Jitter: ms / 10}},
	} {
		t.Run(fmt.Sprintf("%s, %v + %v", c.network, c.faults.Delay, c.faults.Jitter), func(t *testing.T) {
			if c.long && testing.Short() {
				t.Skip("takes two seconds of real time")
			}
			t.Parallel()
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				c1, c2, err = pair(c.network)
				if err != nil {
					return nil, nil, nil, err
				}
				n := faultnet.New(1)
				n.Linger(time.Minute) // real time: the far end reads all, however busy the machine is
				if err := n.Set(c.faults); err != nil {
					return nil, nil, nil, err
				}
				c1, c2 = n.Conn(c1), n.Conn(c2)
				return c1, c2, func() {
					_, _ = c1.Close(), c2.Close()
					n.Cut() // nothing is left under way
				}, nil
			})
		})
	}
}

// pair returns both ends of a connection.
func pair(network string) (c1, c2 net.Conn, err error) {
	if network == "pipe" {
		c1, c2 = net.Pipe()
		return c1, c2, nil
	}
	l, err := nettest.NewLocalListener(network)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if c1, err = net.Dial(network, l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if c2, err = l.Accept(); err != nil {
		_ = c1.Close()
	}
	return c1, c2, err
}
