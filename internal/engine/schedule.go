package engine

import (
	"container/heap"
	"sync"
	"time"
)

// schedule checks buckets at planned times: a lease may be idle, or tokens may still have to be
// returned. One timer, set for the earliest check, drives it.
type schedule struct {
	mu     sync.Mutex
	checks checkHeap
	wake   chan struct{} // capacity 1: the earliest time has changed
}

// add plans a check of b at a time, unless an earlier one is planned. That check plans the next one
// itself.
func (a *schedule) add(b *Bucket, at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.checkAt != 0 && b.checkAt <= at {
		return
	}
	b.checkAt = at // this makes an entry for a later time void
	heap.Push(&a.checks, scheduledCheck{at, b})
	if a.checks[0].bucket == b {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// due removes and returns the buckets that are due.
func (a *schedule) due(now time.Duration) []*Bucket {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []*Bucket
	for len(a.checks) > 0 && a.checks[0].at <= now {
		if p := heap.Pop(&a.checks).(scheduledCheck); p.bucket.checkAt == p.at {
			p.bucket.checkAt = 0
			due = append(due, p.bucket)
		}
	}
	return due
}

// pause returns the time from now until the earliest check.
func (a *schedule) pause(now time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.checks) == 0 {
		return time.Hour
	}
	return max(a.checks[0].at-now, 0)
}

// scheduledCheck is an entry of the schedule. It is void if bucket.checkAt is another time.
type scheduledCheck struct {
	at     time.Duration
	bucket *Bucket
}

// checkHeap is a min-heap by time, for container/heap.
type checkHeap []scheduledCheck

func (h checkHeap) Len() int           { return len(h) }
func (h checkHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h checkHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *checkHeap) Push(x any)        { *h = append(*h, x.(scheduledCheck)) }

func (h *checkHeap) Pop() any {
	old := *h
	last := len(old) - 1
	p := old[last]
	old[last] = scheduledCheck{}
	*h = old[:last]
	return p
}
