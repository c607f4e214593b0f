package redistest

import "syscall"

// DieWithParent lets the kernel end a process whose test binary was killed before its cleanups ran.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
