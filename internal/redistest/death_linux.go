package redistest

import "syscall"

// dieWithParent lets the kernel end a server whose test binary was killed before its cleanups ran.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
