package redistest

import "syscall"

// DieWithParent lets the kernel end a process whose parent was killed before it could clean up.
func DieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
