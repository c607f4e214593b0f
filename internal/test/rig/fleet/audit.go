package fleet

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tiered-limiter/tiered-limiter/internal/test/proof/invariant"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
)

// Audit looks at the buckets of loads in Redis while a fleet runs. What they say of themselves must
// be possible, whatever happens (invariant.Bucket). A new bucket before the old one could expire is
// a loss of state, which costs a burst.
type Audit struct {
	t      testing.TB
	client redis.UniversalClient
	done   chan struct{}
	ended  sync.WaitGroup
	looks  int
	seen   map[string]*lastSeen // by policy
}

// lastSeen is what is known of one bucket. Times are µs of Redis' clock, which is the epoch's too.
type lastSeen struct {
	epoch   int64
	expires int64 // no earlier
	losses  int64
}

// StartAudit starts an audit of loads with a token bucket of one limit and one key. The client must
// not hang where Redis does.
func StartAudit(t testing.TB, client redis.UniversalClient, loads []Load) *Audit {
	a := &Audit{t: t, client: client, done: make(chan struct{}), seen: map[string]*lastSeen{}}
	names := remote.NewRedis(client, nil)
	a.ended.Go(func() {
		for {
			select {
			case <-a.done:
				return
			case <-time.After(10 * time.Millisecond):
			}
			for i := range loads {
				a.look(&loads[i], names.Key(loads[i].Name, cmp.Or(loads[i].Key, "shared")))
			}
		}
	})
	return a
}

// look reads one bucket. Redis may be away: then there is nothing to see.
func (a *Audit) look(load *Load, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	p := a.client.Pipeline()
	fields, ttl := p.HGetAll(ctx, name), p.PTTL(ctx, name)
	if _, err := p.Exec(ctx); err != nil || len(fields.Val()) == 0 {
		return
	}
	a.looks++
	b, err := invariant.Parse(lua.TokenBucket, fields.Val(), ttl.Val())
	if err != nil {
		a.t.Errorf("%s: %v", load.Name, err)
		return
	}
	limit := lua.Limit{Cap: load.Limit.Burst, Tokens: load.Limit.Tokens, Period: load.Limit.Per.Microseconds()}
	if f := b.Check(lua.TokenBucket, limit); f.Broken() {
		a.t.Errorf("%s: %v", load.Name, f)
	}
	last := a.seen[load.Name]
	if last == nil {
		last = &lastSeen{epoch: b.Born}
		a.seen[load.Name] = last
	}
	if b.Born != last.epoch && b.Born < last.expires {
		last.losses++
	}
	// It lives for what is left of its time from the last touch on at least; a replica may have set
	// its time to live later.
	last.epoch, last.expires = b.Born, b.Last+b.Left.Microseconds()-100_000
}

// Stop ends the audit and returns how often it looked at a bucket, and how often Redis lost that of
// each policy.
func (a *Audit) Stop() (looks int, losses map[string]int64) {
	close(a.done)
	a.ended.Wait()
	losses = map[string]int64{}
	for policy, last := range a.seen {
		losses[policy] = last.losses
	}
	return a.looks, losses
}
