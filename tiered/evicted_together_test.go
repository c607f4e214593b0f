package tiered

import (
	"testing"
	"testing/synctest"

	"github.com/tiered-limiter/tiered-limiter/remote"
)

// If the keys of one request evict each other whenever PerKey is called, the request still ends.
func TestKeysThatPushEachOtherOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Policy{Name: "api", Limit: PerHour(100), PerKey: func(string) Limit { return PerHour(50) }}
		l := limiter(t, remote.NewMemory(), p, &Options{MaxKeys: 1})
		for range 3 {
			if d := All(l.For("a"), l.For("b")).Allow(t.Context()); !d.Allowed {
				t.Errorf("%+v", d)
			}
		}
	})
}
