package sim

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/sim/internal/stable"
)

// slack is within how long all who wait go on, and by how much a call outlasts its timeout: the Group's own timer ends at the
// same instant, and which of the two were first the processors would say. In a real process it is the Group's, which starts
// first.
const slack = time.Microsecond

// turns are the instants at which things go on in a process that waited for all else that happened at one. Each has one of its
// own: at an instant that two share the processors would order them, and they ask for the same keys. Which it is depends on
// numbers alone. To draw instants and hope is not enough: of a thousand, a run with shards drew one twice every few seconds.
//
// Times are since the beginning of the run. The zero value is ready, and its methods may be called concurrently.
type turns struct {
	last atomic.Int64 // nobody has a turn after it

	mu      sync.Mutex
	came    time.Duration // when those came who have no turn yet
	waiting []*turn
	taken   map[time.Duration]struct{} // up to last
}

type turn struct {
	number uint64
	at     time.Duration
}

// join lets somebody wait who came now, under a number; wait, once all have come who come at that instant, reports when he
// goes on.
func (t *turns) join(now time.Duration, number uint64) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deal(now)
	w := &turn{number: number}
	t.came, t.waiting = now, append(t.waiting, w)
	t.last.Store(max(t.last.Load(), int64(now+1+slack)))
	return w
}

func (t *turns) wait(now time.Duration, w *turn) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deal(now)
	return w.at
}

// enter is for what comes from outside, now: it reports when that may go on, which is later only if somebody has his turn now.
func (t *turns) enter(now time.Duration) time.Duration {
	if int64(now) > t.last.Load() {
		return now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deal(now)
	if _, taken := t.taken[now]; !taken {
		return now
	}
	return t.take(now)
}

// deal gives those their turns who came before now: nobody can join them any more.
func (t *turns) deal(now time.Duration) {
	if len(t.waiting) == 0 || t.came == now {
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
	slices.SortFunc(t.waiting, func(a, b *turn) int { return cmp.Compare(a.number, b.number) })
	for _, w := range t.waiting {
		w.at = t.take(t.came + 1 + time.Duration(stable.Mix(w.number)%uint64(slack)))
	}
	t.waiting = t.waiting[:0]
}

// take takes the first instant from one on that nobody has.
func (t *turns) take(at time.Duration) time.Duration {
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
