package tiered_test

import (
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// If the keys of one request evict each other whenever PerKey is called, the request still ends.
func TestKeysThatPushEachOtherOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tiered.Policy{
			Name: "api", Limit: tiered.PerHour(100),
			PerKey: func(string) tiered.Limit { return tiered.PerHour(50) },
		}
		l := limiter(t, remote.NewMemory(), p, &tiered.Options{MaxKeys: 1})
		for range 3 {
			if d := tiered.All(l.For("a"), l.For("b")).Allow(t.Context()); !d.Allowed {
				t.Errorf("%+v", d)
			}
		}
	})
}
