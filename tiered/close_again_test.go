package tiered_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tiered-limiter/tiered-limiter/internal/engine"
	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A Close whose context ends gives up what it could not return. So another Close, or one that waits at the same time, ends
// too, whatever its own context is, and says what is lost.
func TestCloseAgain(t *testing.T) {
	for name, outage := range map[string]time.Duration{"after the outage": 0, "in the outage": time.Hour} {
		bubble(t, name, func(t *testing.T) {
			store := remote.NewMemory()
			l := must(tiered.New(store, tiered.Policy{Name: "p", Limit: tiered.PerSecond(1000)}, nil))
			for range 300 {
				l.Allow(t.Context(), "k")
				time.Sleep(ms)
			}
			if l.Group().Stats().Policies["p"].Leases.Held == 0 {
				t.Fatal("nothing is leased")
			}
			store.Fail(errors.New("refused"))
			beside := make(chan error)
			go func() { beside <- l.Close(context.Background()) }()
			ctx, cancel := context.WithTimeout(t.Context(), 500*ms) // a lease lives for a second
			defer cancel()
			if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first Close returned %v", err)
			}
			if outage == 0 {
				store.Fail(nil)
			}
			begin := time.Now()
			for _, err := range []error{<-beside, l.Close(context.Background())} {
				if !errors.Is(err, engine.ErrTooLate) || !strings.Contains(err.Error(), `tokens of policy "p"`) {
					t.Errorf("the other Close returned %v", err)
				}
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("they took %v more", took)
			}
		})
	}
}
