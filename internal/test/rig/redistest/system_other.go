//go:build !linux

package redistest

import (
	"net"
	"strconv"
	"syscall"
)

// hold returns a loopback port that is free now, or says whether this one is: elsewhere nothing
// keeps a port for a server that does not listen yet.
func hold(port int) (held int, release func(), err error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return 0, nil, err
	}
	held = l.Addr().(*net.TCPAddr).Port
	return held, func() {}, l.Close()
}

// DieWithParent has no equivalent here: a server outlives a parent that is killed.
func DieWithParent() *syscall.SysProcAttr { return nil }
