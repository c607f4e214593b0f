package main

import "crypto/sha256"

// readings are those of files that may change. What is being written is not used: two readings have to agree.
type readings struct{ used, last [sha256.Size]byte }

// change is what a reading tells.
type change int

const (
	none     change = iota // it is as the files that are used, or cannot be used
	changing               // it is new: the next reading tells
	changed                // it is new, and as the last reading
)

// add adds a reading, by the hash of all files.
func (r *readings) add(sum [sha256.Size]byte) change {
	before := r.last
	r.last = sum
	switch {
	case sum == r.used:
		return none
	case sum != before:
		return changing
	}
	r.used = sum
	return changed
}
