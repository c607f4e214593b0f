//go:build !linux

package redistest

import "syscall"

// DieWithParent has no equivalent here: a server outlives a parent that is killed.
func DieWithParent() *syscall.SysProcAttr { return nil }
