package redistest

import (
	"os"
	"syscall"
)

// hold takes a loopback port, or any if it is 0, until release. The socket is bound and does not
// listen: so a server can listen there, and again after it ended, while the kernel gives the port
// to nobody who takes any, and who dials it is refused.
func hold(port int) (held int, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	release = func() { _ = syscall.Close(fd) }
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		// Only now: with it two of us could have the same port. Servers set it too, so they may
		// listen there.
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	var at syscall.Sockaddr
	if err == nil {
		at, err = syscall.Getsockname(fd)
	}
	if err != nil {
		release()
		return 0, nil, os.NewSyscallError("bind", err)
	}
	return at.(*syscall.SockaddrInet4).Port, release, nil
}

// DieWithParent lets the kernel end a process whose parent was killed before it could clean up.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
