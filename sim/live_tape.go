package sim

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// tape keeps what a meter is to be told until the end of a live run, and then plays it in the order of time: real processes
// tell late, and one later than the other, but they know when it was. It takes some 200 bytes per thing that is told. Its
// methods may be called concurrently; those of nil do nothing but add, which tells at once.
type tape struct {
	mu  sync.Mutex
	all []told
}

// told is something that was so at a time.
type told struct {
	at   time.Duration
	tell func()
}

// add has something told.
func (t *tape) add(at time.Duration, tell func()) {
	if t == nil {
		tell()
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, told{at, tell})
}

// play tells all; what was so at one time in the order in which it was added.
func (t *tape) play() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.all, func(a, b told) int { return cmp.Compare(a.at, b.at) })
	for _, x := range t.all {
		x.tell()
	}
	t.all = nil
}

// since is how long after the beginning of the run a time of the wall clock is, in nanoseconds since 1970. The processes of a
// machine have the same.
func (r *run) since(wall int64) time.Duration { return max(0, time.Duration(wall-r.base.UnixNano())) }
