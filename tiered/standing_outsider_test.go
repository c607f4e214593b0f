package tiered_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// For a while after a process without standing shares has left, Redis keeps the whole limit of that process. Shares beside it
// would be more than the limit, so they are used again only after that: a surge of a full key admits one burst.
func TestSharesWaitForTheLimitOfWhoLeft(t *testing.T) {
	for wait := time.Second; wait < 30*time.Second; wait += 2 * time.Second {
		synctest.Test(t, func(t *testing.T) {
			store := remote.NewMemory()
			open := func(s tiered.Standing) *tiered.Limiter {
				l := must(tiered.New(store, tiered.Policy{Name: "api", Limit: tiered.PerSecond(80).WithBurst(400), Standing: s}, nil))
				return l
			}
			l := open(tiered.StandingOn)
			defer func() { _ = l.Close(t.Context()) }()
			time.Sleep(90 * time.Second)
			old := open(tiered.StandingOff)
			for range 10_000 {
				old.Allow(t.Context(), "k")
				time.Sleep(time.Millisecond)
			}
			ok(t, old.Close(t.Context()))
			time.Sleep(wait)
			admitted := 0
			for range 3000 { // far more than there is
				if l.Allow(t.Context(), "k").Allowed {
					admitted++
				}
				time.Sleep(time.Microsecond)
			}
			if admitted > 401 {
				t.Errorf("%v after the other left a surge admitted %d of 400", wait, admitted)
			}
		})
	}
}
