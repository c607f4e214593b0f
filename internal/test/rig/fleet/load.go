package fleet

import (
	"context"
	"io"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// quietPart is the part of each surgePeriod in which a load with Surges offers next to nothing.
const (
	surgePeriod = 2 * time.Second
	quietPart   = 1200 * time.Millisecond

	hotPart = 0.8 // of the requests of a load with Moves, offered by the process whose turn it is
)

// carrier carries a load with several workers.
type carrier struct {
	Load
	seed    uint64 // of the process
	limiter *tiered.Limiter
	out     io.Writer
	made    atomic.Int64 // requests
}

// work makes requests at a rate, one after the other, until ctx ends or all are made.
func (w *carrier) work(ctx context.Context, perSecond float64, random *rand.Rand) {
	next := time.Now()
	for ctx.Err() == nil {
		if w.Most > 0 && w.made.Add(1) > w.Most {
			return
		}
		if perSecond > 0 {
			next = next.Add(time.Duration(random.ExpFloat64() / (w.peak() * perSecond) * float64(time.Second)))
			// A request that is due already waits for nothing: one that hung for a second is made up for.
			if wait := time.Until(next); wait > 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(wait):
				}
			}
			if random.Float64() >= w.part(next) {
				continue
			}
		}
		w.one(random)
	}
}

// one makes one request and records it.
func (w *carrier) one(random *rand.Rand) {
	ctx := context.Background()
	if w.Cancel > 0 && random.Float64() < w.Cancel {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Hour)
		defer time.AfterFunc(time.Duration(random.Int64N(int64(2*time.Millisecond))), cancel).Stop()
		defer cancel()
	}
	key := w.key(random)
	before := time.Now().UnixNano()
	d := w.limiter.Allow(ctx, key)
	r := Record{Before: before, After: time.Now().UnixNano(), Allowed: d.Allowed, Reason: d.Reason}
	_, _ = w.out.Write(r.bytes())
}

func (w *carrier) key(random *rand.Rand) string {
	switch {
	case w.Keys < 0:
		return strconv.FormatUint(random.Uint64(), 36)
	case w.Keys > 0:
		return strconv.FormatInt(random.Int64N(w.Keys), 10)
	default:
		return w.Key
	}
}

// peak is the most that is offered at any time, in times the average.
func (w *carrier) peak() float64 {
	peak := 1.0
	if w.Surges {
		peak *= 2.35
	}
	if w.Moves > 1 {
		peak *= hotPart * float64(w.Moves)
	}
	return peak
}

// part is the part of the peak that is offered at a time. By the wall clock, so that all processes surge together and
// take turns.
func (w *carrier) part(at time.Time) float64 {
	part := 1.0
	if w.Surges && at.UnixNano()%int64(surgePeriod) < int64(quietPart) {
		part *= 0.04
	}
	if w.Moves > 1 && at.Unix()%int64(w.Moves) != int64(w.seed)%int64(w.Moves) {
		part *= (1 - hotPart) / hotPart / float64(w.Moves-1)
	}
	return part
}
