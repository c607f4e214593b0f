package tiered_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tiered-limiter/tiered-limiter/remote"
	"github.com/tiered-limiter/tiered-limiter/tiered"
)

// A request over more keys than a process keeps is decided by Redis, and not by the fail mode because its keys push each
// other out.
func TestRequestOverMoreKeysThanAreKept(t *testing.T) {
	for _, perKey := range []bool{false, true} {
		for _, keys := range []int{3, 20} {
			t.Run(fmt.Sprint(keys, " keys, PerKey ", perKey), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := tiered.Policy{Name: "api", Limit: tiered.PerHour(10), FailMode: tiered.FailOpen}
					if perKey {
						p.PerKey = func(string) tiered.Limit { return tiered.PerHour(10) }
					}
					l := limiter(t, remote.NewMemory(), p, &tiered.Options{MaxKeys: 2})
					time.Sleep(time.Second)
					var uses []tiered.Use
					for i := range keys {
						uses = append(uses, l.For(fmt.Sprint("key ", i)))
					}
					admitted := 0
					for range 100 {
						if tiered.All(uses...).Allow(t.Context()).Allowed {
							admitted++
						}
						each := make([]tiered.Decision, keys)
						tiered.AllowSeparately(t.Context(), uses, each)
						for _, d := range each {
							if d.Tier == tiered.Failover {
								t.Fatalf("the fail mode decided, and Redis answers: %+v", d)
							}
						}
					}
					if admitted != 5 { // the other five of each key are those of AllowSeparately
						t.Errorf("%d of 100 admitted by a limit of 10 per hour", admitted)
					}
				})
			})
		}
	}
}
