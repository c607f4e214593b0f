package tiered

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// agenda looks at buckets when they are due: a lease that lies idle, something still to be returned. One timer, for the
// earliest of them, drives it.
type agenda struct {
	group *Group
	mu    sync.Mutex
	due   dueHeap
	wake  chan struct{} // capacity 1: the earliest time has changed
}

func newAgenda(g *Group) *agenda { return &agenda{group: g, wake: make(chan struct{}, 1)} }

// plan sees to it that b is checked at a time, or earlier. A bucket is in the agenda at most once; an earlier check
// plans the next one itself.
func (a *agenda) plan(b *bucket, at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case b.checkAt == 0:
		b.checkAt = at
		heap.Push(&a.due, b)
	case at < b.checkAt:
		b.checkAt = at
		heap.Fix(&a.due, b.place)
	default:
		return
	}
	if a.due[0] == b {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// run works until ctx ends.
func (a *agenda) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := a.group.now()
		a.group.watchClock(now)
		for _, b := range a.take(now) {
			b.apply(now, b.Check(now))
		}
		timer.Reset(a.pause())
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
	}
}

// take removes the buckets that are due.
func (a *agenda) take(now time.Duration) []*bucket {
	a.mu.Lock()
	defer a.mu.Unlock()
	var due []*bucket
	for len(a.due) > 0 && a.due[0].checkAt <= now {
		b := heap.Pop(&a.due).(*bucket)
		b.checkAt = 0
		due = append(due, b)
	}
	return due
}

// pause reports the time to the earliest entry.
func (a *agenda) pause() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.due) == 0 {
		return time.Hour
	}
	return max(a.due[0].checkAt-a.group.now(), 0)
}

// dueHeap is a min-heap by time, for container/heap.
type dueHeap []*bucket

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].checkAt < h[j].checkAt }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *dueHeap) Push(x any) {
	b := x.(*bucket)
	b.place = len(*h)
	*h = append(*h, b)
}

func (h *dueHeap) Pop() any {
	old := *h
	last := len(old) - 1
	b := old[last]
	old[last] = nil
	*h = old[:last]
	return b
}
