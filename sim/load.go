package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// hotKey is the key of the hot traffic.
const hotKey = "hot"

// load is the requests to one process: Poisson arrivals in an open loop, so that one which waits holds nobody up.
type load struct {
	process   *process
	meter     *meter
	coldKeys  []string
	hot, cold float64 // arrivals per second
	seed      uint64
	end       time.Time
}

// run makes requests until the end, and waits for the answers.
func (l *load) run() {
	random := named(l.seed, fmt.Sprintf("process %d, arrivals", l.process.number))
	mean := float64(time.Second) / (l.hot + l.cold)
	var requests sync.WaitGroup
	defer requests.Wait()
	for next := time.Now(); ; {
		// Intervals are whole nanoseconds and as good as never the same for two processes: nobody wakes up at one
		// instant with another.
		next = next.Add(time.Duration(random.ExpFloat64() * mean))
		hot, key := random.Float64()*(l.hot+l.cold) < l.hot, random.IntN(len(l.coldKeys))
		if !next.Before(l.end) {
			return
		}
		time.Sleep(time.Until(next))
		requests.Go(func() {
			if hot {
				l.ask(l.process.hot, hotKey, -1)
			} else {
				l.ask(l.process.cold, l.coldKeys[key], key)
			}
		})
	}
}

// ask makes one request. cold is the number of its key, -1 for the hot one.
func (l *load) ask(limiter *tiered.Limiter, key string, cold int) {
	r := l.meter.offer(l.process.number, cold)
	l.meter.decided(r, limiter.Allow(context.Background(), key))
}
