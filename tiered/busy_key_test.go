package tiered_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A key that is asked for all the time, and found without a lock, stays while others come and go.
func TestBusyKeyIsNotEvictedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys, others = 4, 40
		const step = 1024 * time.Microsecond // no time of a decision is one that is chosen to count as a use
		l := limiter(t, newDistant(step), tiered.Policy{Name: "api", Limit: tiered.PerSecond(2000)},
			&tiered.Options{MaxKeys: keys})
		ctx := context.Background()
		warmEach(t, l, "busy", 300, step)
		for i := range others {
			want(t, l.Allow(ctx, strconv.Itoa(i)), tiered.Granted)
			warmEach(t, l, "busy", 500, step)
		}
		if n := l.Group().Stats().Evictions; n != others+1-keys {
			t.Errorf("%d evictions for %d others that came, want %d: the busy key was among them", n, others,
				others+1-keys)
		}
		books(t, l.Group())
	})
}
