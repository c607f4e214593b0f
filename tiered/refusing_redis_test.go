package tiered_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/failover"
	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

const errFull = replied("OOM command not allowed when used memory > 'maxmemory'.")

// full is a store that may refuse to write: it answers what writes nothing, as a server does that is full, or a
// replica.
type full struct {
	*distant
	is atomic.Bool

	mu       sync.Mutex
	together bool // a pipeline held a denial and a refused write
}

func (s *full) Run(ctx context.Context, timeout time.Duration, calls []lua.Call, results []remote.Result) {
	if !s.is.Load() {
		s.distant.Run(ctx, timeout, calls, results)
		return
	}
	time.Sleep(s.trip)
	denied, refused := false, false
	for i := range calls {
		s.Memory.Clone().Run(ctx, timeout, calls[i:i+1], results[i:i+1]) // what it would do is forgotten
		if r := results[i].Reply; calls[i].Lease != "" && r.Code <= lua.Denied || r.Grant > 0 {
			results[i], refused = remote.Result{Err: errFull}, true
		} else if r.Code == lua.Denied {
			denied = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.together = s.together || denied && refused
}

func (s *full) Presence(
	ctx context.Context, timeout time.Duration, n remote.Node, p remote.Process,
) (remote.Census, error) {
	if s.is.Load() {
		time.Sleep(s.trip)
		return remote.Census{}, errFull
	}
	return s.distant.Presence(ctx, timeout, n, p)
}

// A store that cannot write does not decide. It may still deny direct takes, because that writes nothing. The fail mode
// decides those, and they do not count as a healthy answer. The store decides again as soon as it has written.
func TestStoreThatCannotWriteDoesNotDecide(t *testing.T) {
	for mode, reason := range map[tiered.FailMode]tiered.Reason{
		tiered.FailOpen: tiered.Open, tiered.FailLocal: tiered.Fallback, tiered.FailClosed: tiered.Unavailable,
	} {
		for _, together := range []bool{true, false} {
			bubble(t, fmt.Sprintf("%v, in one pipeline %t", mode, together), func(t *testing.T) {
				store := &full{distant: newDistant(ms)}
				p := tiered.Policy{Name: "api", Limit: tiered.PerDay(10), FailMode: mode, Lease: neverLeased}
				other := limiter(t, store, p, nil)
				for i := range 20 {
					want(t, other.AllowN(ctx, fmt.Sprint("used up ", i), 10), tiered.Granted)
				}
				l := limiter(t, store, p, nil) // which knows nothing of that
				want(t, l.Allow(ctx, "k"), tiered.Granted)
				time.Sleep(10 * ms)
				guard := tiered.Dispatch(l.Group()).Nodes()[0]
				asked := 0
				exhausted := func() {
					t.Helper()
					d := l.Allow(ctx, fmt.Sprint("used up ", asked))
					if asked++; d.Reason != reason {
						t.Errorf("%+v, want %v", d, reason)
					}
				}

				store.is.Store(true)
				if together {
					if d := tiered.All(l.For("fresh"),
						l.For("used up 18")).Allow(ctx); d.Reason != reason || !store.together {
						t.Errorf("%+v, in one pipeline %t", d, store.together)
					}
					exhausted()
				} else {
					l.Allow(ctx, "fresh")
					exhausted()
				}
				exhausted()
				exhausted()
				if guard.State() == failover.Closed {
					t.Error("the breaker is closed")
				}
				for range 100 {
					if time.Sleep(20 * ms); guard.State() == failover.Closed {
						t.Fatal("the breaker closed")
					}
					l.Allow(ctx, "used up 0")
				}

				store.is.Store(false)
				time.Sleep(5 * second) // the next presence at the latest
				want(t, l.Allow(ctx, "used up 19"), tiered.Limited)
				books(t, l.Group())
			})
		}
	}
}
