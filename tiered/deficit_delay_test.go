package tiered_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// Redis hears of a cost that was known afterwards within 50 ms, or when it answers again. A key that is full there refills
// nothing until then, as the documentation of Charge says.
func TestDelayOfADeficit(t *testing.T) {
	charge := func(l *tiered.Limiter) { _ = l.Charge("ann", 50) }
	settle := func(l *tiered.Limiter) { l.ReserveN(context.Background(), "ann", 1).Settle(51) }
	for _, c := range []struct {
		name   string
		cost   func(*tiered.Limiter)
		outage time.Duration
		left   int64 // of 100, once another process sees it
	}{
		{"Charge", charge, 0, 50},
		{"Settle", settle, 0, 49},
		{"Charge in an outage of an hour, which is 100 tokens", charge, time.Hour, 50},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, ctx := remote.NewMemory(), context.Background()
			of := func() *tiered.Limiter {
				l := limiter(t, store, tiered.Policy{Name: "api", Limit: tiered.PerHour(100)}, &tiered.Options{
					Logger: slog.New(slog.DiscardHandler),
				})
				return l
			}
			l, other := of(), of()
			time.Sleep(time.Second)
			delay := 50 * time.Millisecond
			if c.outage > 0 {
				store.Fail(errors.New("down"))
				delay = 5 * time.Second // a probe and the pause of the key
			}
			c.cost(l)
			time.Sleep(c.outage)
			store.Fail(nil)
			time.Sleep(delay)
			if left := other.Peek(ctx, "ann").Remaining; left != c.left {
				t.Errorf("%s: %d left after %v, want %d", c.name, left, delay, c.left)
			}
		})
	}
}
