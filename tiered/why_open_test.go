package tiered_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// refusedUser is how Redis refuses a password.
type refusedUser struct{}

func (refusedUser) Error() string {
	return "WRONGPASS invalid username-password pair or user is disabled."
}
func (refusedUser) RedisError() {}

// While nothing is sent to a node, whoever is told so is told why: it is known.
func TestWhyNothingIsSent(t *testing.T) {
	for _, cause := range []error{refusedUser{}, errors.New("dial tcp 10.0.0.7:6379: connect: connection refused")} {
		synctest.Test(t, func(t *testing.T) {
			store, ctx := remote.NewMemory(), context.Background()
			g := must(tiered.NewGroup(store, &tiered.Options{Logger: slog.New(slog.DiscardHandler)}))
			defer func() { _ = g.Close(ctx) }()
			l := must(g.NewLimiter(tiered.Policy{Name: "api", Limit: tiered.PerMinute(100)}))
			store.Fail(cause)
			asked := time.Now()
			for g.Stats().Nodes["memory"].Outages.Breaker != "open" {
				if l.Allow(ctx, "ann"); time.Since(asked) > time.Minute {
					t.Fatal("the breaker does not open")
				}
				time.Sleep(100 * time.Millisecond)
			}
			for range 3 { // between probes, and when one is due
				for name, err := range map[string]error{
					"Ping": g.Ping(ctx), "Reset": l.Reset(ctx, "ann"), "Refund": l.Refund(ctx, "ann", 1),
				} {
					if !errors.Is(err, tiered.ErrUnavailable) || !errors.Is(err, cause) || !strings.Contains(err.Error(), cause.Error()) {
						t.Errorf("%s: %v, want the cause %q", name, err, cause)
					}
				}
				time.Sleep(2 * time.Second)
			}
		})
	}
}
