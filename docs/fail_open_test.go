package docs_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/test/rig/fatal"
	"github.com/tiered-limiter/tiered-limiter/tiered"
	"github.com/tiered-limiter/tiered-limiter/tiered/tieredtest"
)

// What FailOpen admits is charged after the outage: a key that ten processes asked for far above
// its limit is refused for as long as docs/choosing.md says, and no longer.
func TestKeyPaysForWhatFailOpenAdmitted(t *testing.T) {
	for _, c := range []struct {
		limit       tiered.Limit
		every       time.Duration // a request of each process
		least, most time.Duration // for which nothing is admitted
	}{
		{tiered.PerSecond(100).WithBurst(200), 20 * time.Millisecond, 2 * time.Second, 4 * time.Second},
		{tiered.PerMinute(100), time.Second, 55 * time.Second, 70 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := tieredtest.NewStore()
			var all []*tiered.Limiter
			for range 10 {
				group := fatal.Get(tiered.NewGroup(store, &tiered.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
				defer group.Close(context.Background())
				all = append(all, fatal.Get(group.NewLimiter(tiered.Policy{Name: "api", Limit: c.limit, FailMode: tiered.FailOpen}))(t))
			}
			last, pause := time.Now(), time.Duration(0)
			ask := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(c.every) {
					for _, l := range all {
						if l.Allow(t.Context(), "flood").Allowed {
							last = time.Now()
						}
						pause = max(pause, time.Since(last))
					}
				}
			}
			ask(time.Minute)
			store.Fail()
			ask(time.Minute)
			store.Heal()
			pause = 0
			ask(90 * time.Second)
			if pause < c.least || pause > c.most {
				t.Errorf("%v: nothing was admitted for %v", c.limit, pause)
			}
		})
	}
}
