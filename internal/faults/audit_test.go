package faults

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// audit looks at the buckets in Redis while a row is played: level + escrow must never exceed the burst, whatever happens;
// and a new bucket before the one that was there could expire is a loss of state, which costs a burst.
type audit struct {
	s     *stage
	done  chan struct{}
	ended sync.WaitGroup
	looks int
	seen  map[string]*sight // by policy
}

// sight is what is known of one bucket. Times are µs of Redis' clock, which is the epoch's too.
type sight struct {
	epoch   int64
	expires int64 // no earlier
	losses  int64
}

func startAudit(s *stage) *audit {
	a := &audit{s: s, done: make(chan struct{}), seen: map[string]*sight{}}
	a.ended.Go(a.run)
	return a
}

func (a *audit) run() {
	names := remote.NewRedis(a.s.watch, nil)
	for {
		select {
		case <-a.done:
			return
		case <-time.After(10 * time.Millisecond):
		}
		for _, j := range a.s.judged {
			a.look(j.Policy, names.Key(j.Policy, j.Key))
		}
	}
}

// look reads one bucket. Redis may be away: then there is nothing to see.
func (a *audit) look(policy, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	p := a.s.watch.Pipeline()
	bucket, ttl := p.HMGet(ctx, name, "l", "o", "c", "t"), p.PTTL(ctx, name)
	if _, err := p.Exec(ctx); err != nil || bucket.Val()[0] == nil {
		return
	}
	h := bucket.Val()
	a.looks++
	if level, escrow := number(h[0]), number(h[1]); level+escrow > burst+1e-6 {
		a.s.Errorf("%s: level %v + escrow %v > burst %d", policy, level, escrow, burst)
	}
	epoch, touched := int64(number(h[2])), int64(number(h[3]))
	last := a.seen[policy]
	if last == nil {
		last = &sight{epoch: epoch}
		a.seen[policy] = last
	}
	if epoch != last.epoch && epoch < last.expires {
		last.losses++
	}
	// It lives for what is left of its time from the last touch on at least; a replica may have set its time to live later.
	last.epoch, last.expires = epoch, touched+ttl.Val().Microseconds()-100_000
}

// stop ends the audit. What it saw lost must be no more than the row allows.
func (a *audit) stop() {
	close(a.done)
	a.ended.Wait()
	if a.looks < 50 {
		a.s.complain("the buckets were seen only %d times", a.looks)
	}
	for i := range a.s.judged {
		j := &a.s.judged[i]
		var lost int64
		if last := a.seen[j.Policy]; last != nil {
			lost = last.losses
		}
		if j.lost == asSeen {
			j.lost = lost
		} else if lost > j.lost {
			a.s.complain("%s: Redis lost the bucket %d times, want %d at most", j.Policy, lost, j.lost)
		}
	}
}

// asSeen as the number of losses is however many the audit sees.
const asSeen = -1

func number(v any) float64 {
	text, _ := v.(string)
	x, _ := strconv.ParseFloat(text, 64)
	return x
}
