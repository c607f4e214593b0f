package harness

import (
	"context"
	"sync/atomic"
	"time"
)

// LagMeter measures by how much the machine holds a process up: what is measured in real time has to allow for it.
type LagMeter struct{ longest atomic.Int64 }

// coarseLag is the usual period of a LagMeter. A process that is held up for less is not noticed, and measuring holds up none.
const coarseLag = 5 * time.Millisecond

// Lag is by how much a sleep was too long.
type Lag struct {
	At, Over int64 // ns of the wall clock; ns
}

// Measure sleeps for a period again and again until ctx ends, and returns by how much each sleep was too long. A period of 0 is
// 5 ms.
func (l *LagMeter) Measure(ctx context.Context, period time.Duration) (all []Lag) {
	if period == 0 {
		period = coarseLag
	}
	for ctx.Err() == nil {
		before := time.Now()
		time.Sleep(period)
		over := time.Since(before) - period
		l.Note(over)
		all = append(all, Lag{before.UnixNano(), int64(over)})
	}
	return all
}

// Note notes that somebody was held up so long.
func (l *LagMeter) Note(d time.Duration) {
	for most := l.longest.Load(); int64(d) > most && !l.longest.CompareAndSwap(most, int64(d)); most = l.longest.Load() {
	}
}

// Longest is the longest lag so far.
func (l *LagMeter) Longest() time.Duration { return time.Duration(l.longest.Load()) }
