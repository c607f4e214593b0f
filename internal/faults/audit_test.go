package faults

import (
	"context"
	"sync"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// audit looks at the buckets in Redis while a row is played. What they say of themselves must be possible, whatever happens
// (invariant.Bucket). A new bucket before the old one could expire is a loss of state, which costs a burst.
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
	fields, ttl := p.HGetAll(ctx, name), p.PTTL(ctx, name)
	if _, err := p.Exec(ctx); err != nil || len(fields.Val()) == 0 {
		return
	}
	a.looks++
	b, err := invariant.Parse(lua.TokenBucket, fields.Val(), ttl.Val())
	if err != nil {
		a.s.Errorf("%s: %v", policy, err)
		return
	}
	if f := b.Check(lua.TokenBucket, lua.Limit{Cap: burst, Tokens: perSecond, Period: 1e6}); f.Broken() {
		a.s.Errorf("%s: %v", policy, f)
	}
	last := a.seen[policy]
	if last == nil {
		last = &sight{epoch: b.Born}
		a.seen[policy] = last
	}
	if b.Born != last.epoch && b.Born < last.expires {
		last.losses++
	}
	// It lives for what is left of its time from the last touch on at least; a replica may have set its time to live later.
	last.epoch, last.expires = b.Born, b.Last+b.Left.Microseconds()-100_000
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
