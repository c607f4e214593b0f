package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/lua"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// deadStore is a Memory that refuses every call.
type deadStore struct{ *remote.Memory }

func (deadStore) Run(_ context.Context, _ time.Duration, calls []lua.Call, results []remote.Result) {
	for i := range calls {
		results[i] = remote.Result{Err: context.DeadlineExceeded}
	}
}

// The fallback of a key that refills for longer than a time can be long is still used when MaxKeys has pushed the key out:
// a century, shared by five processes, is five.
func TestEvictedFallbackOfACentury(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, deadStore{remote.NewMemory()}, tiered.Policy{
			Name: "api", Limit: tiered.Limit{Tokens: 1, Per: 876_000 * time.Hour}, FailMode: tiered.FailLocal,
		}, &tiered.Options{MaxKeys: 1, Processes: 5})
		admitted := 0
		for range 5 {
			if l.Allow(t.Context(), "k").Allowed {
				admitted++
			}
			l.Allow(t.Context(), "another")
			time.Sleep(500 * time.Millisecond)
		}
		if admitted != 1 {
			t.Errorf("%d of 1 in a century admitted", admitted)
		}
	})
}

// What a key used in an outage before MaxKeys pushed it out is known when it comes back, also if it takes centuries to refill, or
// if its limit was lowered meanwhile. (Issue 38; random plans 16825 and 10609.)
func TestEvictedFallbackIsSpentByAnyLimit(t *testing.T) {
	for _, c := range []struct {
		name        string
		limit, then tiered.Limit
	}{
		{"slower than time can tell", tiered.Limit{Tokens: 10, Per: 876_000 * time.Hour, Burst: 100}, tiered.Limit{}},
		{"lowered", tiered.Limit{Tokens: 10, Per: time.Second, Burst: 100}, tiered.Limit{Tokens: 1, Per: time.Minute, Burst: 100}},
		{"the same", tiered.Limit{Tokens: 1, Per: time.Minute, Burst: 100}, tiered.Limit{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiter(t, deadStore{remote.NewMemory()}, tiered.Policy{
					Name: "api", Limit: c.limit, FailMode: tiered.FailLocal,
				}, &tiered.Options{MaxKeys: 1})
				use := func() (admitted int) {
					for range 200 {
						if l.Allow(t.Context(), "k").Allowed {
							admitted++
						}
					}
					l.Allow(t.Context(), "another") // pushes it out
					time.Sleep(time.Second)
					return admitted
				}
				first := use()
				if c.then != (tiered.Limit{}) {
					if err := l.SetLimit(c.then); err != nil {
						t.Fatal(err)
					}
				}
				again := use()
				t.Logf("%d, and %d when it came back", first, again)
				if first < 100 || again > 10 { // the refill of a second
					t.Errorf("%d admitted, and %d when it came back, of 100", first, again)
				}
			})
		})
	}
}
