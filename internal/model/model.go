// Package model is package lua's scripts in Go: what a Redis that runs them stores and answers, to
// the last bit. It is a state machine without a clock, a lock or I/O. [remote.Memory] adds these,
// and is what others use.
//
// There are three kinds of keys, as on Redis: the buckets ([Keys]), the set of the processes that
// are present ([Presence]), and the table of the standing shares ([Table]). Each file is named
// after its script. lease.go has the steps that the scripts with leases share.
//
// The tests in package remote run each call on a real Redis too, and compare replies and what is
// stored.
package model

import "strconv"

// Error is what a script raises, or Redis' own type check, as Redis would send it. It never
// contains a user's key.
type Error string

func (e Error) Error() string { return string(e) }

// argumentError is the script's refusal of its n-th argument.
func argumentError(n int) error { return Error("RLARG argument " + strconv.Itoa(n)) }
