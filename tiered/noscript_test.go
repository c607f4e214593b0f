package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// everyScript is a policy of each algorithm, and so of each script that decides. They admit nothing by themselves.
func everyScript(lease tiered.Lease) (all []tiered.Policy) {
	for i, p := range []tiered.Policy{
		{Algorithm: tiered.TokenBucket},
		{Algorithm: tiered.TokenBucket, Also: []tiered.Limit{tiered.PerHour(20_000)}},
		{Algorithm: tiered.FixedWindow},
		{Algorithm: tiered.SlidingWindow},
		{Algorithm: tiered.SlidingLog},
	} {
		p.Name, p.Limit, p.Lease, p.FailMode = fmt.Sprintf("p%d", i), tiered.PerMinute(10_000), lease, tiered.FailClosed
		if p.Algorithm == tiered.SlidingLog {
			p.Lease = tiered.Lease{}
		}
		all = append(all, p)
	}
	return all
}

// A healthy Redis that has lost its scripts, or does not have them yet, refuses no request, also if a request needs
// several scripts, and if they are lost again and again under load. Nothing counts as a failure of Redis.
func TestForgottenScriptsRefuseNobody(t *testing.T) {
	for name, lease := range map[string]tiered.Lease{"direct": {Size: tiered.NoLease}, "leased": {}} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			admin := server.Client()
			l := several(t, open(t, server.URL()), patientOptions(nil), everyScript(lease)...)
			together := func(key string, first, n int) tiered.Decision {
				uses := make([]tiered.Use, n)
				for i := range uses {
					uses[i] = l[(first+i)%len(l)].For(key)
				}
				return tiered.All(uses...).Allow(context.Background())
			}
			for first := range l {
				for n := 1; n <= len(l); n++ {
					command(t, admin, "SCRIPT", "FLUSH")
					if d := together(fmt.Sprint("k", first, "-", n), first, n); d.Reason != tiered.Granted {
						t.Errorf("%d policies from %d on, after SCRIPT FLUSH: %+v", n, first, d)
					}
				}
			}

			const callers, requests, flushes = 8, 50, 20
			var all sync.WaitGroup
			var left, refused atomic.Int64
			left.Store(callers)
			for c := range callers {
				all.Go(func() {
					defer left.Add(-1)
					for i := range requests {
						if d := together(fmt.Sprint(c, "-", i%20), i, 1+i%len(l)); d.Reason != tiered.Granted {
							refused.Add(1)
							t.Logf("%+v", d)
						}
					}
				})
			}
			flushed := 0
			for ; left.Load() > 0 || flushed < flushes; flushed++ {
				command(t, admin, "SCRIPT", "FLUSH")
			}
			all.Wait()
			if refused.Load() > 0 {
				t.Errorf("%d of %d refused during %d times SCRIPT FLUSH", refused.Load(), callers*requests, flushed)
			}
			for node, s := range l[0].Group().Stats().Nodes {
				if s.Calls.Failed > 0 || s.Outages.Count > 0 || s.Outages.Breaker != "closed" {
					t.Errorf("%s: %+v", node, s)
				}
			}
		})
	}
}
