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
		l, err := tiered.New(deadStore{remote.NewMemory()}, tiered.Policy{
			Name: "api", Limit: tiered.Limit{Tokens: 1, Per: 876_000 * time.Hour}, FailMode: tiered.FailLocal,
		}, &tiered.Options{MaxKeys: 1, Processes: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
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
