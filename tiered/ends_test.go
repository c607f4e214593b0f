package tiered_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/dispatch"
	"github.com/tiered-limiter/tiered-limiter/internal/rig/redistest"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// ends is a tape that fails when the store refuses a call for its arguments, and says by its own clock when each was
// executed.
type ends struct {
	*distant
	t *testing.T

	mu    sync.Mutex
	calls []lua.Call
}

func (s *ends) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	s.distant.Run(ctx, timeout, calls, results)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range calls {
		if dispatch.IsScriptError(results[i].Err) {
			s.t.Errorf("%v: %+v", results[i].Err, c)
		}
		if c.Now = results[i].Reply.Now; results[i].Err == nil && c.Now > 0 {
			s.calls = append(s.calls, c)
		}
	}
}

// policiesAtTheEnds are those that validation accepts of all that have each of their numbers at an end of its range.
func policiesAtTheEnds() (all []tiered.Policy) {
	const year = 365 * 24 * time.Hour
	leases := []tiered.Lease{{}, {Size: tiered.NoLease}, {Period: tiered.MinPeriod}, {Size: 1, Period: tiered.MaxPeriod}}
	modes := []tiered.FailMode{tiered.FailOpen, tiered.FailLocal, tiered.FailClosed}
	n := 0
	for a := tiered.TokenBucket; a <= tiered.SlidingWindow; a++ {
		for _, per := range []time.Duration{
			time.Microsecond, 7 * time.Microsecond, second, time.Minute, tiered.MaxWindow, (1 << 50) * time.Microsecond,
			(1<<50 + 1) * time.Microsecond, tiered.MaxPer / 64 / 1000 * 1000, tiered.MaxPer / 2, tiered.MaxPer,
		} {
			for _, tokens := range []int64{1, 64, tiered.MaxEntries, tiered.MaxTokens - 1, tiered.MaxTokens} {
				for _, burst := range []int64{0, 1, 64, tiered.MaxTokens} {
					for _, also := range []int{0, 1, tiered.MaxLimits - 1} {
						n++
						p := tiered.Policy{
							Name: fmt.Sprint("p", n), Algorithm: a,
							Calendar: a == tiered.FixedWindow && n%2 == 0,
							Limit:    tiered.Limit{Tokens: tokens, Per: per, Burst: burst}, Lease: leases[n%4],
							FailMode: modes[n/2%3],
						}
						for j := range also {
							l := p.Limit
							if l.Per -= time.Duration(j+1) * time.Microsecond; per < second {
								l.Per = time.Duration(100+j) * year / 128 / 1000 * 1000
							}
							p.Also = append(p.Also, l)
						}
						if a == tiered.SlidingWindow {
							for i := range p.Also {
								p.Also[i].Precision = precisionAtAnEnd(p.Also[i].Per, n+i+1)
							}
							p.Limit.Precision = precisionAtAnEnd(per, n)
						}
						if a == tiered.SlidingLog {
							p.Lease = tiered.Lease{}
						}
						if p.Validate() == nil {
							all = append(all, p)
						}
					}
				}
			}
		}
	}
	return all
}

// precisionAtAnEnd returns 0, the whole period, or the shortest legal precision.
func precisionAtAnEnd(per time.Duration, i int) time.Duration {
	return []time.Duration{0, per, max((per/tiered.MaxBlocks + time.Microsecond).Truncate(time.Microsecond),
		time.Microsecond)}[i%3]
}

// The scripts refuse nothing that validation accepts: no call of any kind, for any policy at the ends of all
// ranges. And they answer each call as Memory does.
func TestEndsOfAllRanges(t *testing.T) {
	notUnderRace(t)
	policies := policiesAtTheEnds()
	if testing.Short() {
		some := policies[:0]
		for i := 0; i < len(policies); i += 2 {
			some = append(some, policies[i])
		}
		policies = some
	}
	var calls []lua.Call
	asked := map[tiered.Algorithm]int{}
	for _, p := range policies {
		synctest.Test(t, func(t *testing.T) {
			store := &ends{distant: newDistant(ms), t: t}
			l := several(t, store, &tiered.Options{Processes: 1}, p)[0]
			toTheEnds(t, store, l, p)
			if s := l.Group().Stats().Policies[p.Name]; s.Faults.Rejected > 0 {
				t.Errorf("%+v: %d calls refused", p, s.Faults.Rejected)
			}
			store.mu.Lock() // something may go back yet
			defer store.mu.Unlock()
			asked[p.Algorithm] += len(store.calls)
			calls = append(calls, store.calls...)
		})
		if t.Failed() {
			t.Fatalf("by %+v", p)
		}
	}
	t.Logf("%d policies, calls by algorithm: %v", len(policies), asked)
	for a := tiered.TokenBucket; a <= tiered.SlidingWindow; a++ {
		if asked[a] < 500 {
			t.Errorf("%d calls of a %v: this shows little", asked[a], a)
		}
	}

	redis := open(t, redistest.Start(t).URL())
	for len(calls) > 0 {
		some := calls[:min(len(calls), 200)]
		calls = calls[len(some):]
		results := make([]remote.Result, len(some))
		for i := range some {
			some[i].Bucket = redis.Key(fmt.Sprint("a", some[i].Algorithm), some[i].Bucket)
		}
		redis.Run(t.Context(), 10*second, some, results)
		for i, r := range results {
			if r.Err != nil {
				t.Fatalf("%v: %+v", r.Err, some[i])
			}
		}
	}
}

// toTheEnds makes a Limiter send calls of every kind.
func toTheEnds(t *testing.T, store *ends, l *tiered.Limiter, p tiered.Policy) {
	burst := burstOf(p.Limit)
	check := func(d tiered.Decision) {
		t.Helper()
		if d.Remaining < 0 || d.Remaining > d.Burst || d.RetryAfter < 0 || d.ResetAfter < 0 {
			t.Errorf("%+v", d)
		}
	}
	for _, n := range []int64{1, 2, burst, burst/3 + 1, burst} {
		check(l.AllowN(ctx, "k", n))
		first, second, third := l.ReserveN(ctx, "k", max(n/2, 1)), l.ReserveN(ctx, "k", 1), l.ReserveN(ctx, "k", 1)
		first.Cancel()
		second.Settle(math.MaxInt64)
		third.Settle(math.MinInt64)
		check(l.Peek(ctx, "k"))
		check(l.AllowN(ctx, "k", 1))
		time.Sleep(60 * ms)
	}
	for range 40 { // until a lease pays
		check(l.Allow(ctx, "k"))
		time.Sleep(ms)
	}
	if err := l.Reset(ctx, "k"); err != nil {
		t.Errorf("Reset: %v", err)
	}
	store.Fail(context.DeadlineExceeded)
	for range 20 {
		check(l.AllowN(ctx, "k", burst))
		time.Sleep(20 * ms)
	}
	for i := 0; i < 1<<14 && burst > 1<<30; i++ { // more than is exact in a double
		l.AllowN(ctx, "k", burst)
	}
	store.Fail(nil)
	time.Sleep(2 * second)
	for range 3 {
		check(l.Allow(ctx, "k"))
		time.Sleep(300 * ms)
	}
	if n := tiered.Dispatch(l.Group()).Nodes()[0]; n.State().String() != "closed" {
		t.Errorf("the breaker is %v", n.State())
	}
	if err := l.Reset(ctx, "k"); err != nil {
		t.Errorf("Reset: %v", err)
	}
}
