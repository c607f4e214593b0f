package sim

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// slack is the span within which callers that wait continue, and by which a call outlasts its timeout. The Group's own
// timer ends at the same instant; without slack the processors would decide which of the two is first. In a real
// process it is the Group's timer, which starts first.
const slack = time.Microsecond

// instants gives each caller of a process that waits for all else at one instant an instant of its own to continue at.
// Callers that share an instant would run in the order of the processors, and they ask for the same keys. The instants
// depend on the callers' numbers alone. Drawing them at random is not enough: of a thousand callers, a run drew one
// twice every few seconds.
//
// Times are since the beginning of the run. The zero value is ready, and the methods may be called concurrently.
type instants struct {
	last atomic.Int64 // no instant after it is reserved

	mu      sync.Mutex
	arrived time.Duration // when the callers in waiting came
	waiting []*instant
	taken   map[time.Duration]struct{} // up to last
}

type instant struct {
	number uint64
	at     time.Duration
}

// join adds a caller that came now, under a number. Once all callers of that instant have joined, wait returns when it
// continues.
func (t *instants) join(now time.Duration, number uint64) *instant {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	w := &instant{number: number}
	t.arrived, t.waiting = now, append(t.waiting, w)
	t.last.Store(max(t.last.Load(), int64(now+1+slack)))
	return w
}

func (t *instants) wait(now time.Duration, w *instant) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	return w.at
}

// enter is for a request from outside that comes now. It returns when the request may continue: now, or later if now is
// reserved.
func (t *instants) enter(now time.Duration) time.Duration {
	if int64(now) > t.last.Load() {
		return now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.assign(now)
	if _, taken := t.taken[now]; !taken {
		return now
	}
	return t.reserve(now)
}

// assign reserves instants for the callers that came before now: nobody can join them any more.
func (t *instants) assign(now time.Duration) {
	if len(t.waiting) == 0 || t.arrived == now {
		return
	}
	if t.taken == nil {
		t.taken = make(map[time.Duration]struct{})
	}
	for at := range t.taken {
		if at < now {
			delete(t.taken, at)
		}
	}
	slices.SortFunc(t.waiting, func(a, b *instant) int { return cmp.Compare(a.number, b.number) })
	for _, w := range t.waiting {
		w.at = t.reserve(t.arrived + 1 + time.Duration(stable.Mix(w.number)%uint64(slack)))
	}
	t.waiting = t.waiting[:0]
}

// reserve reserves the first free instant from at on.
func (t *instants) reserve(at time.Duration) time.Duration {
	for {
		if _, taken := t.taken[at]; !taken {
			break
		}
		at++
	}
	t.taken[at] = struct{}{}
	t.last.Store(max(t.last.Load(), int64(at)))
	return at
}
