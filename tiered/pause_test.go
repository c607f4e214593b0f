package tiered_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// pausing is a store a millisecond away that stands still once, and answers afterwards what it was
// asked meanwhile, unless the client has given up.
type pausing struct {
	*distant
	carries  bool      // requests may make their calls themselves
	from, to time.Time // when it stands still
}

func (s *pausing) KeepsTimeout() bool { return s.carries }

// stand waits while the store stands still, for timeout at most.
func (s *pausing) stand(timeout time.Duration) (answers bool) {
	if time.Now().Before(s.from) {
		return true
	}
	still := time.Until(s.to)
	time.Sleep(min(still, timeout))
	return still < timeout
}

func (s *pausing) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if s.stand(timeout) {
		s.distant.Run(ctx, timeout, calls, results)
		return
	}
	for i := range calls {
		results[i] = remote.Result{Err: context.DeadlineExceeded}
	}
}

func (s *pausing) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if s.stand(timeout) {
		return s.distant.Presence(ctx, timeout, n, p)
	}
	return remote.Census{}, context.DeadlineExceeded
}

// Once Redis has stood still for a moment, it decides again at once: a fail-open that goes on would
// admit a flood beside it. With a pause of 60 ms, it did for 0.4 s. A longer one may open the
// breaker, and then a probe finds out.
func TestPauseIsOverWhenRedisAnswers(t *testing.T) {
	const begin, end, soon = 2 * second, 5 * second, 5 * ms
	for _, still := range []time.Duration{60 * ms, 90 * ms, 120 * ms, 150 * ms} {
		for _, carries := range []bool{false, true} {
			for _, lease := range []tiered.Lease{{}, neverLeased} {
				for _, callers := range []int{1, 4} {
					bubble(t, fmt.Sprint(still, " ", carries, " ", lease, " ", callers), func(t *testing.T) {
						start := time.Now()
						store := &pausing{newDistant(ms), carries, start.Add(begin), start.Add(begin + still)}
						l := limiter(t, store, tiered.Policy{
							Limit: tiered.PerSecond(1000), FailMode: tiered.FailOpen, Lease: lease,
						}, nil)
						var opened, late atomic.Int64
						var all sync.WaitGroup
						for range callers {
							all.Go(func() {
								for time.Since(start) < end {
									switch d := l.Allow(ctx, "k"); {
									case d.Tier != tiered.Failover:
									case time.Since(store.to) > soon:
										late.Add(1)
									default:
										opened.Add(1)
									}
									time.Sleep(ms)
								}
							})
						}
						all.Wait()
						if late.Load() > 0 {
							t.Errorf("the fail mode decided %d while Redis stood still, and %d later than %v after that",
								opened.Load(), late.Load(), soon)
						}
					})
				}
			}
		}
	}
}

// The same for a key whose first call ends with its caller's Budget, which the breaker does not
// count.
func TestPauseLongerThanBudget(t *testing.T) {
	for _, still := range []time.Duration{120 * ms, 135 * ms, 150 * ms} {
		bubble(t, fmt.Sprint(still), func(t *testing.T) {
			store := &pausing{distant: newDistant(ms / 5), carries: true, from: time.Now().Add(time.Hour)}
			l := limiter(t, store, tiered.Policy{
				Algorithm: tiered.FixedWindow, Limit: tiered.Limit{Tokens: 1, Per: 100 * ms},
				FailMode: tiered.FailOpen, Lease: neverLeased,
			}, &tiered.Options{Budget: 5 * ms, Timeout: 50 * ms})
			for range 10 {
				l.Allow(ctx, "k")
				time.Sleep(second)
			}
			store.from, store.to = time.Now(), time.Now().Add(still)
			for time.Since(store.to) < second {
				asked := time.Now()
				if d := l.Allow(ctx, "k"); d.Tier == tiered.Failover && asked.Sub(store.to) > 5*ms {
					t.Errorf("%v, and Redis went on %v before", d.Reason, asked.Sub(store.to))
				}
				time.Sleep(20 * ms)
			}
		})
	}
}

// After a pause nobody is told to raise Budget or to move closer to Redis. A node that is asked
// rarely remembers its last answers for long, and those that a pause held up count as one.
func TestPauseIsNoFarRedis(t *testing.T) {
	for _, still := range []time.Duration{60 * ms, 90 * ms, 120 * ms} {
		for at := 10 * second; at < 15*second; at += 50 * ms { // so that reports of presence meet it too
			bubble(t, fmt.Sprint(still, " after ", at), func(t *testing.T) {
				begin := time.Now().Add(at)
				store := &pausing{newDistant(ms), true, begin, begin.Add(still)}
				var log bytes.Buffer
				logger := slog.New(slog.NewTextHandler(&log, nil))
				l := limiter(t, store, direct("api", 1000), &tiered.Options{Logger: logger})
				for range 3 {
					l.Allow(ctx, "k")
				}
				time.Sleep(time.Until(begin))
				var all sync.WaitGroup
				for key := range 3 {
					time.Sleep(5 * ms)
					all.Go(func() { l.Allow(ctx, fmt.Sprint(key)) })
				}
				all.Wait()
				time.Sleep(20 * second)
				synctest.Wait() // for what is being logged
				if strings.Contains(log.String(), "raise Budget") {
					t.Errorf("want no advice after a pause: %s", log.String())
				}
			})
		}
	}
}
