package adversary

import (
	"sync"
	"sync/atomic"
)

// Walk plays every schedule of a scope up to a depth. It goes breadth first, so that the first failure has one of the
// shortest schedules. Of two schedules that lead to the same state one is followed up.
type Walk struct {
	Scope   *Scope
	Depth   int
	Workers int // that share the work

	States int    // found so far, after Run
	Broken *Error // the first thing that broke
}

// Error is a failure, and the schedule that led to it.
type Error struct {
	Schedule Schedule
	Fault    string
}

// Run walks, and reports whether nothing broke.
func (k *Walk) Run() bool {
	seen := newSeen()
	frontier := [][]uint16{nil}
	for range k.Depth {
		frontier = k.level(frontier, seen)
		k.States += len(frontier)
		if k.Broken != nil {
			return false
		}
	}
	return true
}

// level takes one step from each state of a frontier, with every action, and returns the new states.
func (k *Walk) level(frontier [][]uint16, seen *seen) (next [][]uint16) {
	var mu sync.Mutex
	var at atomic.Int64
	var all sync.WaitGroup
	for range max(k.Workers, 1) {
		all.Go(func() {
			var found [][]uint16
			for {
				i := int(at.Add(1)) - 1
				if i >= len(frontier) {
					break
				}
				found = append(found, k.follow(frontier[i], seen, &mu)...)
			}
			mu.Lock()
			next = append(next, found...)
			mu.Unlock()
		})
	}
	all.Wait()
	return next
}

// follow takes one more step after a schedule, each in a world of its own: the state of the shipped code can be
// replayed but not copied.
func (k *Walk) follow(path []uint16, seen *seen, mu *sync.Mutex) (found [][]uint16) {
	for choice := range uint16(len(k.Scope.Actions)) {
		s := Schedule{Scope: k.Scope, Choices: append(append(make([]uint16, 0, len(path)+1), path...), choice)}
		w := New(s.Scope, OnMemory(), "b", 0)
		if !s.steps(w) {
			continue // the last one was not possible
		}
		if w.Fault == "" {
			w.bound()
		}
		if w.Fault == "" && seen.add(w.digest()) {
			found = append(found, s.Choices)
		}
		if w.Fault != "" {
			mu.Lock()
			if k.Broken == nil {
				k.Broken = &Error{Schedule: s, Fault: w.Fault}
			}
			mu.Unlock()
			return found
		}
	}
	return found
}

// seen is a set of digests for concurrent use.
type seen struct {
	shards [64]struct {
		mu  sync.Mutex
		set map[uint64]struct{}
		_   [40]byte
	}
}

func newSeen() *seen {
	s := new(seen)
	for i := range s.shards {
		s.shards[i].set = make(map[uint64]struct{})
	}
	return s
}

// add reports whether a digest is new.
func (s *seen) add(digest uint64) bool {
	shard := &s.shards[digest%64]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if _, ok := shard.set[digest]; ok {
		return false
	}
	shard.set[digest] = struct{}{}
	return true
}
